"""What the functions of the native library take and return."""

from __future__ import annotations

import ctypes
from typing import Any

_TYPES = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_int64,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
    "s": ctypes.c_char_p,
    "d": ctypes.c_double,
}

_SIGNATURES = {  # arguments, then what it returns
    "outrider_abi": ("", "i"),
    "outrider_isa": ("", "s"),
    "outrider_has_isa": ("s", "i"),
    "outrider_isa_failed": ("s", "i"),
    "outrider_set_isa": ("s", "i"),
    "outrider_threads": ("", "i"),
    "outrider_set_threads": ("i", "i"),
    "outrider_plan_weight": ("pp", "i"),
    "outrider_pack": ("ppn", "i"),
    "outrider_linear": ("pnpp", "i"),
    "outrider_rows": ("pnpp", "i"),
    "outrider_norm": ("nnpppfp", "i"),
    "outrider_forward": ("ppp", "i"),
    "outrider_draft_chain": ("ppp", "i"),
    "outrider_nearest": ("npnpnpnpp", "n"),
    "outrider_attend": ("piiiifippp", "i"),
    "outrider_attend_fixed": ("pnfpp", "i"),
    "outrider_shared_gather": ("pppni", "i"),
    "outrider_rotations": ("nnpp", "i"),
    "outrider_memory_rate": ("n", "d"),
    "outrider_arithmetic_rate": ("", "d"),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes, which would otherwise cut addresses down to 32 bits."""
    for name, (arguments, result) in _SIGNATURES.items():
        function: Any = getattr(library, name, None)
        if function is None:  # the ABI's number, which is compared next, says whether that is right
            continue
        function.argtypes, function.restype = [_TYPES[kind] for kind in arguments], _TYPES[result]
    return library
