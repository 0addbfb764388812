"""Compiling ``kernels.c`` for this machine: once, in well under a second, with the C compiler that is there."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from outrider.kernels.processor import has_bf16_tiles, processor
from outrider.utils.user_cache import cache_root

logger = logging.getLogger(__name__)

SWITCH = "OUTRIDER_COMPILE"
"""Environment variable: 0 leaves the C compiler alone."""

_PRODUCT = "_ZN2at6native7cpublas6brgemmEllllllbPKN3c108BFloat16ES5_Pfb"  # at::native::cpublas::brgemm
_RELEASE = "_ZN2at6native7cpublas14brgemm_releaseEb"
_FLAGS = ("-O3", "-march=native", "-std=c11", "-shared", "-fPIC")
_SIGNATURES: dict[str, str] = {  # p: pointer, n: int64, f: float
    "add_rmsnorm": "nnpppfpp",
    "silu_mul": "nnppp",
    "place_heads": "nnnnppppfpppnpp",
    "collect_heads": "npnnpp",
    "linear": "ppnnnpppp",
    "attend": "ppppppp",
    "decoder_layer": "pppppppppp",
}
_TYPES = {"p": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float}


class AttentionStruct(ctypes.Structure):
    """``attention`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("tiles", "rows", "d", "kv_heads", "group")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("q", "index")),
        *((name, ctypes.c_int64) for name in ("keys", "orders")),
        *((name, ctypes.c_void_p) for name in ("seen", "mask")),
    )


class LinearStruct(ctypes.Structure):
    """``dense`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("weight", "bias")),
        *((name, ctypes.c_int64) for name in ("inputs", "outputs")),
    )


class LayerStruct(ctypes.Structure):
    """``layer`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, LinearStruct) for name in ("qkv", "out", "gate_up", "down")),
        ("eps", ctypes.c_float),
    )


class ForwardStruct(ctypes.Structure):
    """``run`` of kernels.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rows", "placed", "slots", "pieces")),
        *((name, ctypes.c_void_p) for name in ("places", "slot_of", "rotation", "silu", "piece", "slot_of_piece")),
        *((name, ctypes.c_void_p) for name in ("q", "sum", "normed", "qkv", "attended", "gates", "inner")),
    )


@cache
def native_library() -> ctypes.CDLL | None:
    """The compiled functions, or None where there is no C compiler, or none wanted; says why, once."""
    path = _library()
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    for name, signature in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [_TYPES[kind] for kind in signature], None
    return library


@cache
def brgemm_functions() -> tuple[int, int] | None:
    """Addresses of torch's product of blocks (oneDNN's brgemm) and of what ends a series of them.

    None where the processor has no matrix tiles, where this build of torch does not export them, or without kernels.
    """
    kernel, torch_cpu = _library(), Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if kernel is None or not has_bf16_tiles() or not torch_cpu.exists() or not _works(kernel, torch_cpu):
        return None
    found = ctypes.CDLL(str(torch_cpu))
    product, release = (ctypes.cast(getattr(found, name), ctypes.c_void_p).value for name in (_PRODUCT, _RELEASE))
    assert product is not None
    assert release is not None
    return product, release


@cache
def _library() -> Path | None:
    """The shared library, from the cache folder if it has been compiled before."""
    if os.environ.get(SWITCH) == "0" or platform.system() == "Windows":
        return None
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        logger.info("no C compiler: layers are computed by torch operations, which takes longer on few rows")
        return None
    source = files(__package__).joinpath("kernels.c").read_text()
    command = [compiler, *_FLAGS, *_for_this_machine()]
    limits = [os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")]
    about = repr((command, source, platform.machine(), sorted(processor().items()), torch.__version__, limits))
    path = cache_root() / "compiled" / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.so"
    try:
        if not path.exists():
            _compile(source, command, path)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        logger.warning("%s cannot compile for this machine (%s): using torch operations", compiler, said.strip())
        return None
    return path


def _compile(source: str, command: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as own:  # other processes may be at it, too
        text, result = Path(own, "kernels.c"), Path(own, "kernels.so")
        text.write_text(source)
        asked = [*command, str(text), "-lm", "-o", str(result)]
        subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60)
        result.replace(path)


def _works(kernel: Path, torch_cpu: Path) -> bool:
    """Whether torch's products come out right, tried once in a process of its own: where they cannot, they abort."""
    verdict = kernel.with_suffix(".tiles")
    if verdict.exists():
        return verdict.read_text() == "yes"
    asked = [sys.executable, "-c", _TRIAL, str(torch_cpu), str(kernel), _PRODUCT, _RELEASE]
    try:
        fine = subprocess.run(asked, check=False, capture_output=True, timeout=60).returncode == 0
        verdict.write_text("yes" if fine else "no")
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("torch's products of blocks could not be tried (%s): using its linear layers", error)
        return False
    return fine


# Two rows of 64 ones times 64 x 64 ones: 64.
_TRIAL = """
import ctypes, sys
torch_cpu, kernels = (ctypes.CDLL(path) for path in sys.argv[1:3])
functions = [ctypes.cast(getattr(torch_cpu, name), ctypes.c_void_p) for name in sys.argv[3:]]
x, weight, y = ((ctypes.c_uint16 * n)(*[0x3F80] * n) for n in (128, 4096, 128))
sizes = [ctypes.c_int64(n) for n in (2, 64, 64)]
kernels.linear(*functions, *sizes, x, weight, None, y)
sys.exit(any(value != 0x4280 for value in y))
"""


def _for_this_machine() -> list[str]:
    """Rows are shared among torch's own threads where they are GNU OpenMP's; others would fight for the cores."""
    wide = ["-mprefer-vector-width=512"] if platform.machine() in ("x86_64", "AMD64") else []
    gnu = platform.system() == "Linux" and "libgomp" in Path("/proc/self/maps").read_text()
    return wide + ["-fopenmp"] * gnu
