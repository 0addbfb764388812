"""certify, plan, pick, bench and figures as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.config import SOURCES
from outrider.drafters import registry
from outrider.utils.working import Lines
from outrider_lab.figures import session, theory_plots
from outrider_lab.priors import MEASURED_ALPHA
from outrider_lab.theory import expected_tokens
from tests.cli.test_cli import outcome, run
from tests.model_folders import model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("models") / "target"))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("prompts") / "short.txt"
    path.write_text("\n\n".join(("one two one two", "red green blue", "so it goes", "a b a b a")))
    return str(path)


def test_pick_recommends_with_reasons() -> None:
    args = ("pick", "--target-params", "70B", "--draft-params", "1B", "--hardware", "h100", "--text", "novel")
    shown = run(*args).stdout
    assert shown.startswith("--draft model --spec-length")
    found = json.loads(run(*args, "--json").stdout)
    assert found["source"] == "model"
    assert found["reasons"]
    assert {choice["source"] for choice in found["ranking"]} >= {"model", "lookup", "ngram"}
    assert "Do not speculate" in run("pick", "--target-params", "7B", "--batch", "1000", "--text", "novel").stdout


@pytest.mark.parametrize(
    ("options", "alpha", "source"),
    [
        (("--text", "repetitive"), 0.55, "repetitive text (docs/choosing.md)"),
        ((), 0.42, "mixed text (docs/choosing.md)"),
        (("--draft-params", "7B"), 0.8, "Leviathan et al. 2023, table 3"),
        (("--alpha", "0.9"), 0.9, "as given"),
    ],
)
def test_what_if_assumes_a_measured_alpha(options: tuple[str, ...], alpha: float, source: str) -> None:
    found = json.loads(run("plan", "--what-if", "--target-params", "70B", *options, "--json").stdout)
    assert found["alpha"] == pytest.approx(alpha)
    assert found["assumptions"][0].startswith(f"α = {alpha:.2f}")
    assert source in found["assumptions"][0]


def test_the_assumed_alphas_are_those_that_give_the_measured_tokens() -> None:
    measured = {"repetitive": 2.21, "mixed": 1.72, "novel": 1.31}  # lookup, K = 10: docs/choosing.md
    assert MEASURED_ALPHA.keys() == measured.keys()
    for text, alpha in MEASURED_ALPHA.items():
        assert float(expected_tokens(alpha, 10)) == pytest.approx(measured[text], abs=0.02)


def test_what_if_needs_no_model() -> None:
    args = ("plan", "--what-if", "--target-params", "70B", "--draft-params", "1B", "--alpha", "0.75")
    assert "Assumed:" in run(*args).stdout
    found = json.loads(run(*args, "--hardware", "a100", "--batch", "4", "--bits", "4", "--json").stdout)
    assert found["speedup"] > 1
    assert found["assumptions"]


def test_theory_s_figures_need_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theory_plots, "all_of_them", lambda out: [theory_plots.expected_tokens(out)])  # as any other
    found = json.loads(run("figures", "--theory-only", "--out", str(tmp_path / "new"), "--json").stdout)
    assert all(Path(f).exists() for figure in found["figures"] for f in figure["files"])
    assert "expected_tokens" in run("figures", "--theory-only", "--out", str(tmp_path)).stdout


@pytest.mark.slow
def test_plan_measures_and_writes_options(
    folder: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {name: SOURCES[name] for name in ("none", "model", "lookup", "ngram")}
    monkeypatch.setattr(registry, "SOURCES", kept)  # the others only take time
    wanted = tmp_path / "options.json"
    args = ("plan", "-m", folder, "--draft-model", folder, "-n", "12", "--dtype", "float32", "--draft-dtype", "float32")
    found = json.loads(run(*args, "--prompts", prompts, "--write", str(wanted), "--json").stdout)
    assert found["target_ms_by_rows"]["1"] > 0
    assert set(found["sources"]) >= {"ngram", "lookup", "model"}
    assert json.loads(wanted.read_text())["model"] == folder
    assert found["median_error"] is not None


def test_bench_compares_sources(folder: str, prompts: str, tmp_path: Path) -> None:
    out, plot = tmp_path / "bench.json", tmp_path / "bench.png"
    args = ("bench", "-m", folder, "-s", "none", "-s", "lookup:4", "-n", "8", "--rounds", "1", "--prompts", prompts,
            "--count", "2")  # fmt: skip
    shown = run(*args, "--concurrency", "1", "--concurrency", "2", "--out", str(out), "--plot", str(plot)).stdout
    assert "lookup:4" in shown
    assert "2 at once" in shown
    assert set(json.loads(out.read_text())["results"]) == {"1", "2"}
    assert plot.exists()


def test_certify_reports_and_exits_with_0(folder: str, prompts: str, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    args = ("certify", "-m", folder, "--draft", "lookup", "--verifier", "matching", "--dtype", "float32", "--quick",
            "--prompts", prompts)  # fmt: skip
    found = json.loads(run(*args, "--report", str(report), "--json").stdout)
    assert found["passed"] is True
    assert report.read_text().startswith("# Certificate")


def test_ctrl_c_ends_certify_with_the_checks_made(
    folder: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider_lab.certify.identity.check", interrupted)
    report = tmp_path / "report.md"
    args = ("certify", "-m", folder, "--draft", "lookup", "--verifier", "matching", "--quick", "--prompts", prompts)
    shown = run(*args, "--report", str(report), code=130).stdout
    assert "PASS  batch invariance" in shown
    assert "INTERRUPTED, not certified" in shown
    assert "INTERRUPTED" in report.read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("pick",), "--target-params"),
        (("pick", "--target-params", "7B", "--hardware", "abacus"), "abacus"),
        (("pick", "--target-params", "7B", "--text", "poetry"), "poetry"),
        (("pick", "--target-params", "7"), "like 70B"),
        (("plan", "--what-if"), "--target-params"),
        (("plan", "--alpha", "0.5"), "--what-if"),
        (("plan", "--prompts", "no-such-file"), "no-such-file"),
        (("bench", "-s", "telepathy"), "telepathy"),
        (("bench", "--rounds", "0"), "rounds=0"),
        (("certify", "--quick", "--full"), "exclude"),
        (("certify", "--endpoint", "http://x"), "baseline"),
        (("certify", "--endpoint", "http://x", "--baseline", "http://x", "--max-minutes", "3"), "max_minutes"),
        (("certify", "--max-minutes", "0"), "max-minutes"),
        (("certify", "--draft", "telepathy"), "telepathy"),
        (("certify", "--draft", "model"), "--draft-model"),
        (("certify", "--verifier", "hope"), "hope"),
        (("certify", "--endpoint", "http://127.0.0.1:9", "--baseline", "http://127.0.0.1:9"), "running"),
        (("figures", "--out", "x", "--tokens", "0"), "tokens=0"),
        (("figures", "--theory-only", "--out", "/dev/null/x"), "/dev/null/x"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], message: str) -> None:
    done = outcome(*args)
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_help_is_worth_reading() -> None:
    for command in ("certify", "plan", "pick", "bench", "figures"):
        assert "Example:" in run(command, "--help").stdout


def test_figures_say_what_they_will_do_and_of_how_much(
    folder: str, prompts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(theory_plots, "all_of_them", lambda out: [])
    monkeypatch.setattr(session, "sources_of", lambda llm: ["ngram"])
    seen: dict[str, list[int]] = {"expected": [], "done": []}
    monkeypatch.setattr(Lines, "expect", lambda self, total, done=0: seen["expected"].append(total))
    monkeypatch.setattr(Lines, "__call__", lambda self, what, count=1: seen["done"].append(count))
    args = ("--prompts", prompts, "--tokens", "50", "--steps", "20", "--out", str(tmp_path))
    shown = run("figures", "-m", folder, *args)
    assert "figures: those of theory, then toy drafts (20 steps of each), then" in shown.stderr
    assert "--theory-only takes seconds" in shown.stderr
    (expected,) = seen["expected"]
    assert sum(seen["done"]) == pytest.approx(expected, abs=2)  # texts may end early


@pytest.mark.parametrize(
    "args", [("plan", "--write"), ("certify", "--quick", "--report"), ("bench", "--out"), ("bench", "--plot")]
)
def test_where_nothing_can_be_written_long_work_does_not_begin(
    args: tuple[str, ...], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.llm.llm.load", lambda *_, **__: pytest.fail("the model was loaded"))
    said = run(*args, str(tmp_path / "none" / "x"), "-m", folder, code=2).stderr
    assert f"cannot write {tmp_path / 'none' / 'x'}: there is no folder" in said
    assert "it is a folder, give a file" in run(*args, str(tmp_path), "-m", folder, code=2).stderr


def test_a_count_of_no_prompts_is_refused(folder: str) -> None:
    for command in ("plan", "bench"):
        assert "count=0 is not valid: use at least 1" in run(command, "-m", folder, "--count", "0", code=2).stderr
