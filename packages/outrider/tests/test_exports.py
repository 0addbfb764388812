"""What is public, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import outrider
from outrider.extensions import EXTRAS


def test_every_public_name_is_there() -> None:
    for name in outrider.__all__:
        assert getattr(outrider, name) is not None
    assert set(outrider.__all__) == {*outrider._HOMES, "__version__"}


def test_an_extension_finds_its_types_at_the_top() -> None:
    assert {"Draft", "Drafter", "Outcome", "RequestView", "StepOutput"} <= set(outrider.__all__)
    assert set(dir(outrider)) == {*outrider.__all__, *EXTRAS["names"]}


@pytest.mark.parametrize("name", EXTRAS["names"])
def test_every_distribution_brings_its_public_names(name: str) -> None:
    assert getattr(outrider, name).__module__.partition(".")[0] != "outrider"


@pytest.mark.parametrize(
    "code", ["from outrider import speculate", "import outrider; assert not hasattr(outrider, 'x')"]
)
def test_the_first_name_asked_for_may_be_of_another_distribution_or_none(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_help_does_not_import_torch() -> None:
    code = "import sys, outrider.cli.main; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_generating_does_not_import_transformers() -> None:
    code = "import sys; from outrider import LLM; assert LLM and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
