"""Flags are made from the dataclasses: which there are, and what reaches the library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from outrider.cli import options as o
from outrider.cli.config_file import Config
from outrider.cli.generated import HIDDEN, Given, options_from
from outrider.cli.main import app
from outrider.config import EngineConfig, SamplingParams, SpeculationParams, engine_config
from outrider.server.settings import ServerSettings

DRAFTING = "draft spec-length tree verifier lenience draft-temperature draft-model heads draft-layers draft-table"
LOADING = "dtype draft-dtype kv-cache-dtype device threads"
CUTTING = "max-tokens min-tokens temperature top-k top-p min-p repetition-penalty presence-penalty frequency-penalty"
FORMS = "logit-bias seed stop ignore-eos logprobs json-schema json-object regex choice grammar"
FLAGS = {
    "generate": f"prompt model chat system config {DRAFTING} prediction {LOADING} max-seq-len {CUTTING} {FORMS} json",
    "chat": f"model system config draft spec-length tree verifier lenience draft-model heads draft-table {LOADING} "
    "max-tokens temperature top-k top-p min-p repetition-penalty seed",
    "serve": f"model config {DRAFTING} extra-source {LOADING} max-seq-len max-batch-size max-batched-tokens kv-cache "
    "kv-tokens host port uds served-model-name ssl-certfile ssl-keyfile ssl-ca-certs api-key api-key-file "
    "metrics-key share-across-keys allow-lossy scheduling-policy cors-origin allowed-host max-queue max-body-bytes "
    "max-connections max-prompts max-n max-prompt-tokens max-tokens max-draft-tokens "
    "request-timeout drain-timeout stream-interval stream-padding playground log-level log-format log-prompts",
    "bench": "model draft-model source peer prompts count max-chars category concurrency rate rounds heads spec-length "
    f"max-tokens temperature python plot out {LOADING} kv-cache json",
    "certify": "model draft-model draft verifier quick full strict prompts endpoint baseline report heads kv-cache "
    f"{LOADING} json",
}


@pytest.mark.parametrize("command", FLAGS)
def test_flags_that_help_shows(command: str) -> None:
    made = get_command(app).commands[command]  # type: ignore[attr-defined]
    shown = [p for p in made.params if p.param_type_name == "option" and not p.hidden]
    assert {p.opts[0].removeprefix("--") for p in shown} == set(FLAGS[command].split())
    assert all(p.help for p in shown)


def test_short_flags() -> None:
    made = get_command(app).commands["generate"]  # type: ignore[attr-defined]
    assert {p.opts[1]: p.name for p in made.params if len(p.opts) > 1} == {
        "-p": "prompt", "-m": "model", "-k": "spec_length", "-n": "max_tokens", "-t": "temperature",
    }  # fmt: skip


def given(*args: str, kinds: tuple[type, ...] = (SpeculationParams, EngineConfig, SamplingParams), **env: str) -> Any:
    """What a command with the options of ``kinds`` gets."""
    found: dict[str, Any] = {}

    @options_from(*kinds, max_tokens=96)
    def command(config: Config = None, *, given: Given) -> None:
        found.update(given)

    test = typer.Typer()
    test.command(context_settings={"auto_envvar_prefix": "OUTRIDER"})(command)
    done = CliRunner().invoke(test, list(args), env=env)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return found


def test_only_what_differs_from_the_library_s_defaults_is_given() -> None:
    assert given() == {"max_tokens": 96}
    assert given("-k", "auto", "-t", "0", "--max-tokens", "7", "--verifier", "matching") == {"max_tokens": 7}


def test_every_kind_of_value() -> None:
    found = given("-k", "3", "--tree", "4,2", "--draft-model", "a", "--draft-model", "b", "--stop", "x", "--ignore-eos",
                  "--logit-bias", "3:-1", "-t", "0.5", "--threads", "2", "--lookahead-window", "9")  # fmt: skip
    assert found == {
        "spec_length": 3, "tree": "4,2", "draft_model": ("a", "b"), "stop": ("x",), "ignore_eos": True,
        "logit_bias": {3: -1.0}, "temperature": 0.5, "threads": 2, "lookahead_window": 9, "max_tokens": 96,
    }  # fmt: skip
    assert o.engine(found).keys() == found.keys() - {"stop", "ignore_eos", "logit_bias", "temperature", "max_tokens"}
    assert engine_config("m", **o.engine(found)).speculation.tree == (4, 2)
    assert SamplingParams(**o.own(SamplingParams, found)).max_tokens == 96


def test_settings_of_the_server() -> None:
    found = given(
        "--api-key", "a", "--api-key", "b", "--no-playground", kinds=(ServerSettings,), OUTRIDER_MAX_QUEUE="3"
    )
    settings = ServerSettings(**found)
    assert (settings.api_keys, settings.playground, settings.max_queue) == (("a", "b"), False, 3)


def test_names_of_other_libraries(tmp_path: Path) -> None:
    found = given("--max-model-len", "64", "--speculative-config", '{"method": "ngram"}')
    assert engine_config("m", **o.engine(found)) == engine_config("m", max_seq_len=64, draft="lookup")
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"max_num_seqs": 2, "speculative_config": {"num_speculative_tokens": 4}}))
    found = given("--config", str(file))
    assert engine_config("m", **o.engine(found)) == engine_config("m", max_batch_size=2, spec_length=4)
    with pytest.raises(ValueError, match="the same option"):
        engine_config("m", **o.engine(given("--max-model-len", "64", "--max-seq-len", "64")))
    with pytest.raises(ValueError, match="is not JSON"):
        given("--speculative-config", "{")


def test_hidden_flags_are_fields() -> None:
    known = {name for kind in (EngineConfig, SpeculationParams, ServerSettings) for name in kind.__dataclass_fields__}
    assert known >= HIDDEN
