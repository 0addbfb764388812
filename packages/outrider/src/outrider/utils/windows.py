"""Calls of Windows that Python's library does not have; for ``utils.system`` alone, and imported only there."""

from __future__ import annotations

import ctypes
import os
from typing import Any

_SYNCHRONIZE = 0x00100000
_FOREVER = 0xFFFFFFFF
_BELOW_NORMAL = 0x00004000
_JOB_EXTENDED_LIMITS = 9
_LIMIT_PROCESS_TIME, _LIMIT_PROCESS_MEMORY = 0x2, 0x100
_TICKS = 10_000_000  # of 100 ns, in a second


class _Memory(ctypes.Structure):
    """MEMORYSTATUSEX."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("total", "free", "paged", "free_paged", "virtual", "free_virtual")),
        ("extended", ctypes.c_uint64),
    )


class _Limits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", ctypes.c_uint32),
        ("least_working_set", ctypes.c_size_t),
        ("most_working_set", ctypes.c_size_t),
        ("processes", ctypes.c_uint32),
        ("affinity", ctypes.c_size_t),
        ("priority", ctypes.c_uint32),
        ("scheduling", ctypes.c_uint32),
        ("transfers", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


_job: list[int] = []  # this process's, once it has limits


def _kernel() -> Any:
    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]  # on Windows alone
    for name in ("CreateJobObjectW", "OpenProcess", "GetCurrentProcess"):
        getattr(kernel, name).restype = ctypes.c_void_p
    return kernel


def memory() -> tuple[int, int]:
    """Bytes of this machine's memory, all and free."""
    status = _Memory(length=ctypes.sizeof(_Memory))
    _kernel().GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.total), int(status.free)


def lower_priority() -> None:
    kernel = _kernel()
    kernel.SetPriorityClass(ctypes.c_void_p(kernel.GetCurrentProcess()), _BELOW_NORMAL)


def limit(memory: int | None, seconds: int | None) -> None:
    """Have this process fail to get more than ``memory`` bytes, and end it after ``seconds`` of processor time."""
    kernel = _kernel()
    if not _job:
        _job.append(kernel.CreateJobObjectW(None, None))
        kernel.AssignProcessToJobObject(ctypes.c_void_p(_job[0]), ctypes.c_void_p(kernel.GetCurrentProcess()))
    job, limits, written = ctypes.c_void_p(_job[0]), _Limits(), ctypes.c_uint32()
    size = ctypes.sizeof(limits)
    kernel.QueryInformationJobObject(job, _JOB_EXTENDED_LIMITS, ctypes.byref(limits), size, ctypes.byref(written))
    if memory is not None:
        limits.flags |= _LIMIT_PROCESS_MEMORY
        limits.process_memory = memory
    if seconds is not None:
        limits.flags |= _LIMIT_PROCESS_TIME
        limits.process_time = seconds * _TICKS
    kernel.SetInformationJobObject(job, _JOB_EXTENDED_LIMITS, ctypes.byref(limits), size)


def exit_after(process: int) -> None:
    """End this process when another one has ended; at once if there is none of this number."""
    kernel = _kernel()
    handle = kernel.OpenProcess(_SYNCHRONIZE, False, process)
    if handle:
        kernel.WaitForSingleObject(ctypes.c_void_p(handle), _FOREVER)
    os._exit(0)
