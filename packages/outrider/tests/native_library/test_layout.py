"""The compiler and ctypes have the same layout of every structure, and no structure of the headers is left out."""

from __future__ import annotations

import ctypes
import re

import pytest

from outrider.native import model_structs, structs
from outrider.native.compile import SOURCES
from outrider.native.library import library, native_library
from outrider.verify.native import SamplingStruct

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

Place = tuple[int, int]  # offset and size, in bytes


def compiled() -> dict[str, Place]:
    """Of every structure and field, by name ("outrider_span.table")."""
    native, found = native_library(), dict[str, Place]()
    offset, size = ctypes.c_int64(), ctypes.c_int64()
    while (name := native.outrider_layout(len(found), ctypes.addressof(offset), ctypes.addressof(size))) is not None:
        found[name.decode()] = offset.value, size.value
    return found


def declared() -> dict[str, Place]:
    """The same of the ctypes structures, whose docstrings begin with the C name."""
    found = dict[str, Place]()
    everything = [*vars(structs).values(), *vars(model_structs).values(), SamplingStruct]
    for kind in {each for each in everything if isinstance(each, type) and issubclass(each, ctypes.Structure)}:
        if kind is ctypes.Structure:
            continue
        named = re.match(r"``(outrider_\w+)``", kind.__doc__ or "")
        assert named is not None, kind
        found[named[1]] = 0, ctypes.sizeof(kind)
        for field in kind._fields_:
            place = getattr(kind, field[0])
            found[f"{named[1]}.{field[0]}"] = place.offset, place.size
    return found


def test_every_field_is_where_the_compiler_puts_it() -> None:
    assert len(compiled()) > 150
    assert declared() == compiled()


def test_every_structure_of_the_headers_is_compared() -> None:
    text = "".join((SOURCES / name).read_text() for name in ("native.h", "pack.h", "sample.h"))
    in_headers = set(re.findall(r"^\} (outrider_\w+);", text, re.MULTILINE))
    assert in_headers == {name for name in compiled() if "." not in name}


def test_fields_leave_no_gap_where_one_could_be_forgotten() -> None:
    ends = dict[str, int]()
    for name, (offset, size) in compiled().items():
        whole, _, field = name.partition(".")
        if field:
            assert offset == ends[whole], name
            ends[whole] = offset + size
        else:
            ends[whole] = 0
    assert ends == {name: size for name, (_, size) in compiled().items() if "." not in name}
