"""Flags are made from the dataclasses: which there are, and what reaches the library."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.cli.shared import flags
from outrider.cli.shared import options as o
from outrider.cli.shared.config_file import Config
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SamplingParams, SpeculationParams, engine_config
from outrider_fleet.settings import FleetSettings
from outrider_lab.fleet_planning.options import FleetOptions
from outrider_server.settings import ServerSettings
from tests.cli.test_cli import run

DRAFTING = "draft spec-length draft-model"
MACHINE = "dtype threads"
COMMON = {
    "generate": f"prompt model raw system config {DRAFTING} {MACHINE} max-tokens temperature top-p seed "
    "json-schema json",
    "chat": f"model system resume load no-history config {DRAFTING} {MACHINE} max-tokens temperature top-p seed",
    "serve": f"model models config {DRAFTING} {MACHINE} max-batch-size host port ssl-certfile ssl-keyfile api-key "
    "api-key-file max-queue max-tokens replicas",
    "bench": "model draft-model source peer prompts suite count concurrency rate rounds spec-length max-tokens "
    f"temperature plot out {MACHINE} json",
    "certify": "model draft-model draft verifier quick full max-minutes strict prompts endpoint baseline tools "
    f"report {MACHINE} json",
}
"""The options that ``--help`` shows."""
_DRAFTING = "tree verifier lenience heads draft-table datastore tree-nodes posterior-threshold"
_MORE_DRAFTING = "draft-temperature draft-layers lookahead"
_MACHINE = "draft-dtype kv-cache-dtype device implementation"
RARE = {
    "generate": f"{_DRAFTING} {_MORE_DRAFTING} prediction image {_MACHINE} "
    "tensor-parallel-size enable-lora lora-modules max-seq-len session-dir session-gb min-tokens top-k min-p stop "
    "repetition-penalty presence-penalty frequency-penalty logit-bias ignore-eos logprobs json-object regex choice "
    "grammar beam-width length-penalty record",
    "chat": f"{_DRAFTING} {_MACHINE} max-seq-len top-k min-p repetition-penalty record",
    "serve": f"{_DRAFTING} {_MORE_DRAFTING} extra-source {_MACHINE} "
    "tensor-parallel-size enable-lora lora-modules max-seq-len max-batched-tokens kv-cache kv-tokens "
    "prefix-reuse session-dir session-gb uds served-model-name max-loaded-models model-idle-seconds "
    "metrics-key metrics-prefix "
    "share-across-keys allow-lossy scheduling-policy cors-origin allowed-host max-body-bytes "
    "request-timeout drain-timeout "
    "stream-interval stream-padding playground log-level log-format record "
    "fleet ray-address routing share-drafts traces",
    "bench": f"max-chars category heads datastore python {_MACHINE} kv-cache",
    "certify": f"at-once notation heads datastore kv-cache {_MACHINE}",
}
"""Those that ``--help-all`` adds."""


def commands() -> Iterator[tuple[str, ...]]:
    """Every command, as the words of its name."""
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        yield (name,)
        yield from ((name, inner) for inner in getattr(resolved(name), "commands", ()))


def resolved(name: str) -> Any:
    """The command itself, also where another distribution brings it."""
    group: Any = get_command(app)
    return group.whole(name)


@pytest.mark.parametrize("command", COMMON)
def test_flags_that_help_shows(command: str) -> None:
    made = resolved(command)
    documented = [p for p in made.params if p.param_type_name == "option" and p.help and p.name != "help_all"]
    common = {p.opts[0].removeprefix("--") for p in documented if not p.hidden}
    rare = {p.opts[0].removeprefix("--") for p in documented if p.hidden}
    assert common == set(COMMON[command].split())
    assert rare == set(RARE[command].split())


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_help_fits_a_screen(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*words, "--help").stdout.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80


def test_help_all_adds_the_rest_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (run("generate", flag).stdout for flag in ("--help", "--help-all"))
    assert "\nDrafting:\n" in short
    assert "\nSampling:\n" in short
    assert "--min-p" not in short
    assert "--min-p <float>" in whole
    assert "suffix (what" in " ".join(whole.split())  # every source with its line
    assert "--max-model-len" not in whole  # another library's name for an option
    assert "--help-all" not in run("pick", "--help").stdout  # there is no rest


def test_help_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    lines = run("generate", "--help").stdout.splitlines()
    assert max(map(len, lines)) <= 50  # the library writes no shorter lines
    assert len(lines) < 120  # not a column of single words


@pytest.mark.parametrize("words", [(), ("models",), ("train",)])
def test_a_group_alone_shows_its_help(words: tuple[str, ...]) -> None:
    assert len(run(*words).stdout.splitlines()) > 8


def test_short_flags() -> None:
    made = resolved("generate")
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
                  "--logit-bias", "3:-1", "-t", "0.5", "--threads", "2", "--lookahead", "9,3,3")  # fmt: skip
    assert found == {
        "spec_length": 3, "tree": "4,2", "draft_model": ("a", "b"), "stop": ("x",), "ignore_eos": True,
        "logit_bias": {3: -1.0}, "temperature": 0.5, "threads": 2, "lookahead": "9,3,3", "max_tokens": 96,
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


def test_several_models(tmp_path: Path) -> None:
    objects = {"b": {"model": "org/b", "draft": "suffix", "max_batch_size": 2}, "c": "./c"}
    found = given("--models", "a=org/a, d", "--models", json.dumps(objects), kinds=(ServerSettings,))
    specs = ServerSettings(**found).models
    assert [(spec.name, spec.model) for spec in specs] == [("a", "org/a"), ("d", "d"), ("b", "org/b"), ("c", "./c")]
    assert dict(specs[2].options) == {"draft": "suffix", "max_batch_size": 2}
    file = tmp_path / "options.json"
    file.write_text(json.dumps({"models": objects, "max_loaded_models": 1}))
    settings = ServerSettings(**given("--config", str(file), kinds=(ServerSettings,)))
    assert (settings.models, settings.max_loaded_models) == (specs[2:], 1)
    assert ServerSettings(**given(kinds=(ServerSettings,), OUTRIDER_MODELS="a=org/a d")).models == specs[:2]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--models", "a=x,a=y"), "the name 'a' is given twice"),
        (("--models", "a="), "names no model at 'a='"),
        (("--models", '{"a": {"draft": "suffix"}}'), "'a' names no model"),
        (("--models", '{"a"'), "is not JSON"),
        (("--models", "*=x"), "the name '*' is not valid"),
        (("--models", '{"a": {"model": "x", "speed": 9}}'), "models: a: "),
        (("--models", "a=x", "--model", "y"), "name all models in --models"),
        (("--models", "a=x", "--served-model-name", "y"), "is for a single model"),
        (("--max-loaded-models", "1"), "give them with --models"),
        (("--models", "a=x", "--max-loaded-models", "0"), "max_loaded_models=0 is not valid"),
        (("--models", "a=x", "--model-idle-seconds", "-1"), "model_idle_seconds=-1.0 is not valid"),
    ],
)
def test_wrong_models(options: tuple[str, ...], told: str) -> None:
    assert told in " ".join(run("serve", *options, code=2).stderr.split())


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


def test_a_command_says_our_name_for_an_alias() -> None:
    told = run("generate", "-p", "x", "--max-model-len", "1", code=2).stderr.splitlines()
    assert len(told) == 2
    assert told[0].startswith("outrider: --max-model-len is another library's name: write --max-seq-len, as")
    assert "max_seq_len=1 is not valid" in told[1]


@pytest.mark.parametrize("kind", [EngineConfig, ServerSettings, FleetOptions, FleetSettings])
def test_what_is_said_of_flags_is_said_of_fields(kind: type) -> None:
    table = flags.table_of(kind)
    kinds = (EngineConfig, SpeculationParams, SamplingParams) if table is flags.CORE else (kind,)
    known = {name for kind in kinds for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    said = table.hidden | table.group.keys() | table.shown.keys() | table.help.keys() | table.choices.keys()
    assert said
    assert known >= said | table.singular.keys() | table.read.keys()
