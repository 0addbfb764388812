"""Compiling ``kernels.c`` for this machine: once, in well under a second, with the C compiler that is there."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from outrider.models.processor import has_bf16_tiles, processor_name
from outrider.models.store import cache_root

logger = logging.getLogger(__name__)

SWITCH = "OUTRIDER_COMPILE"
"""Environment variable: 0 leaves the C compiler alone."""

_PRODUCT = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"  # at::native::cpublas::brgemm
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"
_FLAGS = ("-O3", "-march=native", "-std=c11", "-shared", "-fPIC")
_SIGNATURES: dict[str, str] = {  # p: pointer, n: int64, f: float
    "add_norm": "nnpppfpp",
    "gated": "nnppp",
    "place_heads": "nnnnppppfpppnpp",
    "collect_heads": "npnnpp",
    "linear": "ppnnnpppp",
    "attend": "ppppppp",
    "through": "pppppppppp",
}
_TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float}


class Attention(ctypes.Structure):
    """``attention`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("tiles", "rows", "d", "kv_heads", "group")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("q", "index")),
        *((name, ctypes.c_int64) for name in ("keys", "orders")),
        *((name, ctypes.c_void_p) for name in ("seen", "mask")),
    )


class Dense(ctypes.Structure):
    """``dense`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
    )


class Layer(ctypes.Structure):
    """``layer`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, Dense) for name in ("qkv", "out", "gate_up", "down")),
        ("eps", ctypes.c_float),
    )


class Run(ctypes.Structure):
    """``run`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "placed", "slots", "pieces")),
        *((name, ctypes.c_void_p) for name in ("places", "slot_of", "rotation", "silu", "piece", "slot_of_piece")),
        *((name, ctypes.c_void_p) for name in ("q", "sum", "normed", "qkv", "attended", "gates", "inner")),
    )


@cache
def kernels() -> ctypes.CDLL | None:
    """The compiled functions, or None where there is no C compiler, or none wanted; says why, once."""
    if os.environ.get(SWITCH) == "0":
        return None
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or platform.system() == "Windows":
        logger.info("no C compiler: layers are composed of torch operations, which takes longer on few rows")
        return None
    try:
        library = ctypes.CDLL(str(_library(compiler)))
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        logger.warning("%s cannot compile for this machine (%s): using torch operations", compiler, said.strip())
        return None
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [_TYPES[kind] for kind in signature], None
    return library


@cache
def products() -> tuple[int, int] | None:
    """Addresses of torch's product of blocks (oneDNN's brgemm) and of what ends a series of them.

    None where the processor has no matrix tiles, where this build of torch does not export them, or without kernels.
    """
    if kernels() is None or not has_bf16_tiles():
        return None
    names = ("libtorch_cpu.so", "libtorch_cpu.dylib")
    path = next((p for name in names if (p := Path(torch.__file__).parent / "lib" / name).exists()), None)
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    try:
        product, release = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in (_PRODUCT, _RELEASE))
    except AttributeError:
        return None
    assert product is not None
    assert release is not None
    return product, release


def _library(compiler: str) -> Path:
    """The shared library, from the cache folder if it has been compiled before."""
    source = files(__package__).joinpath("kernels.c").read_text()
    command = [compiler, *_FLAGS, *_for_this_machine()]
    about = "\n".join([*command, source, processor_name(), platform.machine(), torch.__version__])
    folder = cache_root() / "compiled"
    path = folder / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as own:  # other processes may be at it, too
            text, result = Path(own, "kernels.c"), Path(own, "kernels.so")
            text.write_text(source)
            asked = [*command, str(text), "-lm", "-o", str(result)]
            subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
            result.replace(path)
    return path


def _for_this_machine() -> list[str]:
    """Rows are shared among torch's own threads where they are GNU OpenMP's; others would fight for the cores."""
    wide = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
    gnu = platform.system() == "Linux" and "libgomp" in Path("/proc/self/maps").read_text()
    return wide + ["-fopenmp"] * gnu
