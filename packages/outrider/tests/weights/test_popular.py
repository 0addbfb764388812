"""The catalogue of models that people run: its numbers agree with each other, and the page with it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from outrider.cli.models import app
from outrider.cli.suggest import larger_model, memory_class, needed_bytes
from outrider.models.layer_kinds import num_weights
from outrider.models.native_llama import require_dimensions
from outrider.native.measure import MachineRates
from outrider.weights.hub.popular import MEMORIES, popular_models
from tests.paths import DOCS


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.cli.suggest.measure_rates", lambda _: MachineRates(10.0, 1000.0))
    monkeypatch.setattr("outrider.engine.forecast.passes_over_limits", lambda *_: [])  # what this machine ran before


def test_dimensions_give_the_published_number_of_parameters() -> None:
    models = popular_models()
    off = {model.name: num_weights(model.config) / (1e9 * model.billions) - 1 for model in models}
    assert {name: each for name, each in off.items() if abs(each) > 0.01} == {}
    for model in models:
        require_dimensions(model.config)  # runs natively
    assert [model.billions for model in models] == sorted(model.billions for model in models)
    assert len({model.name for model in models}) == len(models) > 20


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [
        ("Llama-3.1-8B", 4.92),
        ("Qwen3-14B", 9.00),
        ("Llama-3.3-70B", 42.5),
        ("gpt-oss-20b", 12.1),
        ("Qwen3-30B-A3B", 18.6),
    ],
)
def test_sizes_are_those_of_published_files(name: str, gigabytes: float) -> None:
    (model,) = [model for model in popular_models() if name in model.name]
    assert model.file_bytes() / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert sum(model.sizes().values()) <= model.file_bytes()


def test_every_memory_has_models() -> None:
    by_memory = {memory: [model for model in popular_models() if memory_class(model) == memory] for memory in MEMORIES}
    assert sum(map(len, by_memory.values())) == len(popular_models())
    assert all(by_memory.values())
    page = (DOCS / "models.md").read_text()
    assert "None was tried with its published weights" in page
    assert not any(model.tried for model in popular_models())  # then the page would have to say which


def test_suggestions_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["suggest", "--memory", "8", "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert {each["memory_gb"] for each in found} == {8}
    assert all(each["needed_bytes"] <= 6e9 for each in found)
    llama = next(each for each in found if "Llama-3.1-8B" in each["name"])
    assert 10e9 / llama["file_bytes"] / 1.5 < llama["tokens_per_s"] < 10e9 / llama["file_bytes"] * 1.1
    monkeypatch.setattr("outrider.cli.suggest.available_memory", lambda: int(2e9))
    shown = CliRunner().invoke(app, ["suggest"], catch_exceptions=False).stdout
    fitting = [model.name for model in popular_models() if needed_bytes(model) <= 2e9]
    assert [line.split()[0] for line in shown.splitlines()[1:-2]] == fitting[::-1]
    assert max(map(len, shown.splitlines())) <= 80
    monkeypatch.setattr("outrider.cli.suggest.available_memory", lambda: 0)
    assert "smollm2-135m-instruct" in CliRunner().invoke(app, ["suggest"], catch_exceptions=False).stdout


@pytest.mark.parametrize("gigabytes", [2, 4, 8, 16, 32, 64])
def test_the_suggested_larger_model_fits_and_answers_quickly(gigabytes: int) -> None:
    found = larger_model(round(gigabytes * 1e9))
    assert found is not None
    assert needed_bytes(found) <= 0.75e9 * gigabytes
    experts = found.config.experts
    assert found.file_bytes() < 3.1e9 or (experts is not None and experts.used < experts.count / 4)
    better = [m for m in popular_models() if m.config.experts is None and found.billions < m.billions]
    assert all(needed_bytes(m) > 0.75e9 * gigabytes or m.file_bytes() > 2.9e9 for m in better), "a larger one would do"


def test_a_machine_with_little_memory_has_no_larger_model() -> None:
    assert larger_model(round(1e9)) is None
