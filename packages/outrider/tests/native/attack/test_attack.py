"""Calls of the native library that cannot be: each is refused with a status, and none ends its process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from outrider.models.native_passes import rotation_table
from outrider.native.compile import SOURCES
from outrider.native.library import library, loaded
from outrider.native.weights import pack_array
from outrider.verify.native import sampler
from tests.native.attack.calls import CALLS
from tests.native.attack.cases import CASES, Case
from tests.paths import ROOT

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no native library"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks"),
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, int | str]:
    found = loaded()
    assert found is not None
    command = [sys.executable, "-m", "tests.native.attack", str(found.path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.stdout, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def test_the_calls_are_sound_before_they_are_changed(outcomes: dict[str, int | str]) -> None:
    found = {name: outcomes[f"{name} "] for name in CALLS}
    counts = {"suffix_array_search": 4, "occurrences": 4, "copied": 15, "suffix_draft": 4}
    assert found == dict.fromkeys(CALLS, 0) | counts | {"isa_state": 1, "threads": 2}


def test_names_of_cases_are_different() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_calls_that_cannot_be_are_refused(case: Case, outcomes: dict[str, int | str]) -> None:
    assert outcomes[case.name] == case.right


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_more_items_than_a_ticket_holds_are_all_done(tmp_path: Path) -> None:
    program = tmp_path / "items"
    files = [Path(__file__).parents[1] / "items.c", SOURCES / "threads.c", SOURCES / "system.c"]
    subprocess.run(["cc", "-O2", "-std=c11", "-pthread", f"-I{SOURCES}", *files, "-o", program], check=True)
    subprocess.run([program], check=True, timeout=120)


def test_matrices_take_rows_of_their_own_width_alone() -> None:
    weight = pack_array(np.ones((16, 32), np.float32))
    for shape in ((1, 31), (2, 64), (0,), (1, 0), (1, 1, 32)):
        with pytest.raises(ValueError, match="32 inputs"):
            weight(np.ones(shape, np.float32))


def test_angles_that_are_no_numbers_are_refused() -> None:
    for wrong in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError, match="out of range"):
            rotation_table(np.array([wrong]), 4)


def test_sampling_takes_whole_keys_and_rows() -> None:
    native, row = sampler(), np.zeros(8, np.float32)
    assert native is not None
    for keys in (b"", bytes(23), bytes(25)):
        with pytest.raises(ValueError, match="24 bytes"):
            native.gumbel(keys, 8)
        with pytest.raises(ValueError, match="24 bytes"):
            native.draw(row, keys)
    with pytest.raises(ValueError, match="have no 9"):
        native.first_largest(np.zeros((1, 8), np.float32), 9)
