"""Extensions are found by their entry points, and an absent one says how to install it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import pytest
import typer

import outrider
from outrider import extensions
from outrider.config import DraftSource
from outrider.config.combination import check_known
from outrider.config.sources import DraftSources
from outrider.errors import ConfigError, MissingExtensionError
from outrider.extensions import EXTRAS, extension, extension_names, has_extension
from tests.cli.test_cli import run
from tests.paths import ROOT
from tests.test_output import output


def echo(text: Annotated[str, typer.Argument(help="The text.")]) -> None:
    """Say a text twice."""
    typer.echo(f"{text} {text}")


PARROT = DraftSource(name="parrot", summary="what was said last", builder="tests.test_extensions:build")
MEDUSA = DraftSource(name="medusa", summary="heads", builder="tests.test_extensions:build")
POINTS = {
    "outrider.commands": {"echo": "echo"},
    "outrider.drafters": {"parrot": "PARROT", "medusa": "MEDUSA"},
    "outrider.names": {"Sound": "PARROT"},
}
"""What the one other distribution brings."""


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One other distribution, instead of those that are installed here."""

    def points(group: str) -> list[EntryPoint]:
        return [EntryPoint(name, f"{__name__}:{value}", group) for name, value in POINTS.get(group, {}).items()]

    monkeypatch.setattr(extensions, "entry_points", points)
    extensions._found.cache_clear()
    yield
    extensions._found.cache_clear()


def test_an_entry_point_brings_an_extension(installed: None) -> None:
    assert extension_names("commands") == ("echo",)
    assert has_extension("commands", "echo")
    assert not has_extension("commands", "serve")
    found: Any = extension("commands", "echo")
    assert found is echo


def test_an_absent_extension_names_its_extra(installed: None) -> None:
    with pytest.raises(
        MissingExtensionError, match=r"draft='lookahead' is not installed: pip install 'outrider\[drafters\]'"
    ):
        extension("drafters", "lookahead", "draft='lookahead'")
    with pytest.raises(ConfigError, match="no installed package brings drafters 'nonsense'"):
        extension("drafters", "nonsense")


def test_known_extensions_come_in_a_fixed_order(installed: None) -> None:
    assert extension_names("drafters") == ("medusa", "parrot")


def test_a_command_of_another_distribution(installed: None) -> None:
    assert "  echo" in run("--help").stdout.splitlines()
    assert run("echo", "hello").stdout == "hello hello\n"
    assert "Say a text twice." in run("echo", "--help").stdout
    assert "missing argument" in run("echo", code=2).stderr.lower()


@pytest.mark.parametrize(("command", "extra"), [("certify", "lab"), ("serve", "server"), ("run", "server")])
def test_an_absent_command_names_its_extra(installed: None, command: str, extra: str) -> None:
    assert command not in run("--help").stdout.split("Commands:")[1].split("Ollama")[0]
    done = run(command, "--json", code=2)
    assert done.stdout == ""
    assert done.stderr == f"outrider: outrider {command} is not installed: pip install 'outrider[{extra}]'\n"


def test_a_command_that_nobody_knows(installed: None) -> None:
    assert "No such command 'certifi'" in run("certifi", code=2).stderr


def test_sources_of_another_distribution_follow_the_core_s(installed: None) -> None:
    own = DraftSource(name="own", summary="mine", builder=None)
    sources = DraftSources({"own": own})
    assert list(sources) == ["own", "medusa", "parrot"]
    assert len(sources) == 3
    assert (sources["own"], sources["parrot"]) == (own, PARROT)
    assert "suffix" not in sources


def test_an_absent_source_names_its_extra(installed: None) -> None:
    assert check_known("suffix,parrot").names == ("suffix", "parrot")
    with pytest.raises(
        MissingExtensionError, match=r"draft='recycling' is not installed: pip install 'outrider\[drafters\]'"
    ):
        check_known("suffix+recycling")
    with pytest.raises(ConfigError, match="'telepathy' is unknown"):
        check_known("telepathy")


def test_public_names_of_another_distribution(installed: None) -> None:
    assert outrider.Sound is PARROT
    assert "Sound" in dir(outrider)
    with pytest.raises(ImportError, match=r"outrider.speculate is not installed: pip install 'outrider\[lab\]'"):
        _ = outrider.speculate
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = outrider.nonsense


def test_views_of_an_output_name_their_extra(installed: None) -> None:
    made = output()
    for view in (made.table, made.plot, lambda: made.tree(0)):
        with pytest.raises(
            MissingExtensionError, match=r"Output\.\w+\(\) is not installed: pip install 'outrider\[lab\]'"
        ):
            view()


def test_every_extra_that_an_error_names_can_be_installed() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for group in EXTRAS.values() for extra in group.values()}
    assert named <= extras.keys()


BROUGHT = [(group, name) for group, names in EXTRAS.items() for name in names]


@pytest.mark.parametrize(("group", "name"), BROUGHT)
def test_the_distribution_of_an_extra_brings_what_is_expected_of_it(group: str, name: str) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    brought = {point.name: point for point in entry_points(group=f"outrider.{group}")}
    (wanted,) = extras[EXTRAS[group][name]]
    assert name in brought
    assert brought[name].dist is not None
    assert wanted.startswith(f"{brought[name].dist.name}==")  # type: ignore[union-attr]
