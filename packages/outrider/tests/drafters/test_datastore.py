"""A datastore: what it finds, against a search of everything; its file; and drafts that come from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from outrider import LLM
from outrider.drafters import datastore
from outrider.drafters.datastore import MAX_MATCH, Datastore, collect, read_origin
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.errors import ConfigError, ModelFormatError
from tests.model_folders import model_folder

from .views import propose, request

texts = st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=30)))
METADATA = {"format": datastore.FORMAT, "vocab_size": "9", "target": "", "texts": "1"}


def agreement(text: list[int], tail: list[int]) -> int:
    """How many tokens the ends of both have in common."""
    count = 0
    while count < min(len(text), len(tail), MAX_MATCH) and text[-1 - count] == tail[-1 - count]:
        count += 1
    return count


@given(texts, st.lists(st.integers(0, 4), max_size=20), st.integers(1, 40))
@settings(deadline=None)  # the library may have to be compiled
def test_the_longest_contexts_are_found(given: list[tuple[list[int], list[int]]], tail: list[int], limit: int) -> None:
    if not any(answer for _, answer in given):
        with pytest.raises(ConfigError, match="no answers"):
            collect(given, 5)
        return
    store = collect(given, 5)
    assert len(store) == sum(len(answer) for _, answer in given)
    contexts = [[*prompt[-8:], *answer[:i]] for prompt, answer in given for i in range(len(answer))]
    lengths = sorted((n for n in (agreement(text, tail) for text in contexts) if n), reverse=True)
    found = store.find(tail, limit)
    sorted_by = 12  # tokens: places that agree for more are neighbours, in no order
    assert [min(o.match, sorted_by) for o in found] == [min(n, sorted_by) for n in lengths[:limit]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datastore, "library", lambda: None)
        assert collect(given, 5).find(tail, limit) == found  # where there is no native library
    for place in found:
        assert list(place.tokens[place.end - place.match : place.end]) == tail[len(tail) - place.match :]
        assert place.tokens[place.end] >= 0


def test_a_file_is_what_was_saved(tmp_path: Path) -> None:
    store = collect([([7, 8], [1, 2, 3, 1, 2, 4]), ([], [5, 1, 2, 6])], 9, "abc")
    store.save(tmp_path / "store")
    again = Datastore.load(tmp_path / "store")
    assert again.origin == store.origin == read_origin(tmp_path / "store")
    assert (again.origin.target, again.origin.texts) == ("abc", 2)
    assert again.find([1, 2], 9) == store.find([1, 2], 9)
    again.check_vocabulary(9)
    with pytest.raises(ConfigError, match="vocabulary of 9 tokens, but the model one of 10"):
        again.check_vocabulary(10)


@pytest.mark.parametrize(
    ("tensors", "metadata", "says"),
    [
        ({}, {"format": "other"}, "format outrider-datastore-1"),
        ({"order": None}, {}, "format outrider-datastore-1"),
        ({}, {"vocab_size": "-3"}, "metadata are damaged"),
        ({"order": np.array([99], dtype=np.int32)}, {}, "places outside its text"),
        ({"order": np.array([3], dtype=np.int32)}, {}, "places outside its text"),
        ({"order": np.array([], dtype=np.int32)}, {}, "no places"),
        ({"order": np.array([18], dtype=np.int32)}, {}, "no token"),
        ({"order": np.array([16])}, {}, "int32"),
        ({"tokens": np.array([*[-1] * 16, 9, 1, *[-1] * 16], dtype=np.int32)}, {}, "vocabulary of 9"),
        ({"tokens": np.array([*[-1] * 16, -2, 1, *[-1] * 16], dtype=np.int32)}, {}, "vocabulary of 9"),
    ],
)
def test_a_damaged_file_is_refused(
    tensors: dict[str, NDArray[Any] | None], metadata: dict[str, str], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    collect([([], [1, 2])], 9).save(path)
    changed = {name: t for name, t in (load_file(path) | tensors).items() if t is not None}
    save_file(changed, path, METADATA | metadata)
    with pytest.raises(ModelFormatError, match=says):
        Datastore.load(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a file: make one"):
        Datastore.load(tmp_path)
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(ModelFormatError):
        Datastore.load(tmp_path / "text")
    with pytest.raises(ConfigError, match="outside the vocabulary of 5"):
        collect([([], [1, 5])], 5)


def test_drafts_are_copied_from_it_and_end_with_its_texts() -> None:
    store = collect([*[([8, 7, 6, 5, 1, 2], [3, 4, 5])] * 6, ([6], [7])], 10)  # so often that the end is certain too
    source = SuffixDrafter(10, datastore=store)
    view = request([9, 8, 7, 6, 5, 1, 2])
    source.start(view)
    draft = propose(source, view, 8)
    assert draft.tokens == (3, 4, 5)
    assert draft.is_chain
    bare = SuffixDrafter(10)
    bare.start(view)
    assert propose(bare, view, 8).tokens == ()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("datastore") / "target")


def test_one_of_another_vocabulary_is_refused(target: Path, tmp_path: Path) -> None:
    collect([([], [1, 2, 3])], 7).save(tmp_path / "store")
    with pytest.raises(ConfigError, match="vocabulary of 7"):
        LLM(str(target), datastore=str(tmp_path / "store"))
