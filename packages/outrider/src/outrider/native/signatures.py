"""Arguments and results of the native library's functions."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_TYPES = {
    "p": ctypes.c_void_p,
    "n": ctypes.c_int64,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
    "s": ctypes.c_char_p,
    "d": ctypes.c_double,
}

_SIGNATURES = {  # arguments, then the result
    "outrider_abi": ("", "i"),
    "outrider_layout": ("ipp", "s"),
    "outrider_isa_state": ("s", "i"),
    "outrider_create": ("isp", "i"),
    "outrider_destroy": ("p", "i"),
    "outrider_isa": ("p", "s"),
    "outrider_threads": ("p", "i"),
    "outrider_syncs": ("p", "n"),
    "outrider_plan_weight": ("pp", "i"),
    "outrider_pack": ("pnnpn", "i"),
    "outrider_checksum": ("pnp", "i"),
    "outrider_rows": ("pnpp", "i"),
    "outrider_rotations": ("nnpp", "i"),
    "outrider_shared_gather": ("pppni", "i"),
    "outrider_suffix_array_search": ("npnpnpnpp", "n"),
    "outrider_occurrences": ("npnpnpp", "n"),
    "outrider_copied": ("npnnp", "n"),
    "outrider_suffix_draft": ("ppppp", "n"),
    "outrider_linear": ("ppnpp", "i"),
    "outrider_norm": ("pnnpppfp", "i"),
    "outrider_forward": ("pppp", "i"),
    "outrider_draft_chain": ("pppp", "i"),
    "outrider_attend": ("ppiiiifippp", "i"),
    "outrider_attend_fixed": ("ppnfpp", "i"),
    "outrider_first_largest": ("pnnnppp", "i"),
    "outrider_most_likely": ("pnnnpfnppp", "i"),
    "outrider_gumbel": ("pnsp", "i"),
    "outrider_gumbel_of": ("pnpp", "i"),
    "outrider_gumbel_of_tokens": ("pnpsp", "i"),
    "outrider_log_weights": ("pnpppp", "i"),
    "outrider_draw": ("pnpspp", "i"),
    "outrider_sample": ("pnppspp", "i"),
    "outrider_memory_rate": ("pn", "d"),
    "outrider_arithmetic_rate": ("p", "d"),
    "outrider_sync_time": ("p", "d"),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the signatures to ctypes, which would otherwise truncate addresses to 32 bits."""
    for name, (arguments, result) in _SIGNATURES.items():
        function: Any = getattr(library, name, None)
        if function is None:  # the ABI's number, which is compared next, says whether that is right
            continue
        function.argtypes, function.restype = [_TYPES[kind] for kind in arguments], _TYPES[result]
    return library


@cache
def quick(library: ctypes.CDLL, name: str) -> Any:
    """A function that takes microseconds, called without letting other threads have the interpreter meanwhile.

    A thread that gives it up may wait for milliseconds until it gets it back.
    """
    arguments, result = _SIGNATURES[name]
    prototype = ctypes.PYFUNCTYPE(_TYPES[result], *[_TYPES[kind] for kind in arguments])
    return prototype((name, library))
