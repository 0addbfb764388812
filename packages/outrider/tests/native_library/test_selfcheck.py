"""An instruction set whose kernels give other bits than portable C is not used; the tiles of AMX give the same bits."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from outrider.cli.doctor import native_facts
from outrider.errors import ConfigError
from outrider.native import compile as native_compile
from outrider.native import library as native_library
from outrider.native.compile import SOURCES, find_compiler, machine_target
from outrider.native.library import Loaded, available_isas, failed_isas, library, loaded

MODELS = Path(__file__).parents[1] / "native"
BEST_FIRST = {"x86_64": ("amx", "avx512", "avxvnni", "avx2"), "aarch64": ("i8mm", "neon")}.get(machine_target(), ())

# Portable kernels under another name. A wrong one flips the lowest bit of one number that one kernel gives.
SEED = """
#define {name}_kernels declared_otherwise
#include "attention.h"
#include "kernels.h"
#include "recurrent.h"
#undef {name}_kernels
kernels {name}_kernels;

static void wrong_linear(const outrider_weight *w, const activations *a, int64_t first, int64_t last, float *y,
                         int64_t stride) {{
    portable_kernels.linear(w, a, first, last, y, stride);
    uint32_t *bits = (uint32_t *)(void *)y;
    if (w->bits == 3) bits[(a->rows - 1) * stride + w->outputs - 1] ^= 1;
}}

static void wrong_norm(int64_t width, const float *x, const float *weight, float eps, float *out) {{
    portable_kernels.norm(width, x, weight, eps, out);
    ((uint32_t *)(void *)out)[width - 1] ^= 1;
}}

static void wrong_rotate(int64_t head_dim, float *x, const float *rotation, const float *weight, float eps) {{
    portable_kernels.rotate(head_dim, x, rotation, weight, eps);
    if (weight) ((uint32_t *)(void *)x)[head_dim - 1] ^= 1;
}}

static void wrong_attend(const struct attention_task *task, float *scratch) {{
    portable_kernels.attend(task, scratch);
    int32_t numbers = task->rows * task->group * (2 + task->head_dim);
    if (task->cache->type == OUTRIDER_CACHE_I8) ((uint32_t *)(void *)task->result)[numbers - 1] ^= 1;
}}

static void wrong_recur(const struct recurrent_task *task, float *copies) {{
    portable_kernels.recur(task, copies);
    ((uint32_t *)(void *)task->state)[task->value_dim - 1] ^= 1;
}}

static int64_t wrong_draw(const weight_row *row, const uint32_t *keys, float *score) {{
    return portable_kernels.draw(row, keys, score) ^ 1;
}}

__attribute__((constructor)) static void fill(void) {{
    {name}_kernels = portable_kernels;
    {name}_kernels.name = "{name}";
    (void)wrong_linear, (void)wrong_norm, (void)wrong_rotate, (void)wrong_attend, (void)wrong_recur, (void)wrong_draw;
    {wrong}
}}
"""
WRONG = "{name}_kernels.{kernel} = wrong_{kernel};"
Load = Callable[..., Loaded]
Objects = dict[tuple[tuple[str, ...], str, bytes], bytes]

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no C compiler"),
    pytest.mark.skipif(not BEST_FIRST, reason="only portable C on this architecture"),
]


@pytest.fixture(scope="module")
def objects() -> Objects:
    """What was compiled, by command and source: most files are the same in all tests."""
    return {}


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, objects: Objects) -> Load:
    """Loads a library of portable instruction sets, but for ``files``; ``seeds``: which kernel of each is wrong."""

    def load_anew(seeds: dict[str, str | None], *files: str) -> Loaded:
        sources = tmp_path / "src"
        sources.mkdir()
        for path in SOURCES.glob("*.[ch]"):
            if not path.name.startswith("isa_") or path.name in ("isa_portable.c", *files):
                shutil.copy(path, sources)
        for name, kernel in seeds.items():
            wrong = WRONG.format(name=name, kernel=kernel) if kernel else ""
            (sources / f"seed_{name}.c").write_text(SEED.format(name=name, wrong=wrong))
        monkeypatch.setattr(native_compile, "SOURCES", sources)
        monkeypatch.setattr(native_library, "PACKAGED", tmp_path / "lib")
        monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
        loaded.cache_clear()
        found = loaded()
        assert found is not None
        return found

    run = native_compile._run

    def run_once(command: Sequence[str]) -> None:
        if "-c" not in command:
            return run(command)
        *flags, _, source, _, result = command
        key = (tuple(flags), Path(source).name, Path(source).read_bytes())
        if key not in objects:
            run(command)
            objects[key] = Path(result).read_bytes()
        Path(result).write_bytes(objects[key])

    monkeypatch.setattr(native_compile, "_run", run_once)
    fast = tuple("-O0" if flag == "-O3" else flag for flag in native_compile.FLAGS)
    monkeypatch.setattr(native_compile, "FLAGS", fast)
    monkeypatch.delenv("OUTRIDER_ISA", raising=False)
    return load_anew


@pytest.fixture(autouse=True)
def _forget_what_was_loaded() -> Iterator[None]:
    """Afterwards too, or all later tests of this process would run on a library without optimisation."""
    loaded.cache_clear()
    yield
    loaded.cache_clear()
    loaded()


def test_a_wrong_instruction_set_is_named_and_the_next_one_runs(
    load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    *wrong, right = BEST_FIRST
    found = load({name: "linear" if name in wrong else None for name in BEST_FIRST})
    assert found.isa == right
    assert available_isas(found.library) == ["portable", right]
    assert sorted(failed_isas(found.library)) == sorted(wrong)
    [record] = caplog.records
    assert record.getMessage().endswith(
        f"gives other bits than portable C on this machine and is not used; {right} runs"
    )
    facts = native_facts(threads=1)
    assert (facts["instruction_set"], sorted(facts["failed_self_check"])) == (right, sorted(wrong))
    monkeypatch.setenv("OUTRIDER_ISA", wrong[0])
    loaded.cache_clear()
    with pytest.raises(ConfigError, match=f"'{wrong[0]}' gives wrong results here: choose one of portable, {right}"):
        loaded()


@pytest.mark.parametrize("kernel", ["linear", "norm", "rotate", "attend", "recur", "draw"])
def test_one_bit_of_any_kernel_is_noticed(kernel: str, load: Load) -> None:
    best, *others = BEST_FIRST
    found = load({best: kernel, **dict.fromkeys(others)})
    assert failed_isas(found.library) == [best]
    assert found.isa == others[0]


@pytest.mark.parametrize(
    ("isa", "model", "around"), [("amx", "tile_model.h", "avx512"), ("avxvnni", "vnni_model.h", "avx2")]
)
def test_instructions_modelled_in_c_give_the_portable_bits(
    isa: str, model: str, around: str, load: Load, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native = library()
    if native is None or around not in available_isas(native):
        pytest.skip(f"the kernels around the modelled instructions are those of {around}")
    compiler, file = find_compiler(), f"isa_{isa}.c"
    if compiler is None or not compiler.knows(native_compile.INSTRUCTION_SETS[file][1]):
        pytest.skip(f"the compiler does not know {isa}")
    loaded.cache_clear()
    target, own = native_compile.INSTRUCTION_SETS[file]
    flags = (*own, "-I", str(SOURCES), "-include", str(MODELS / model))
    monkeypatch.setitem(native_compile.INSTRUCTION_SETS, file, (target, flags))
    found = load({name: None for name in BEST_FIRST if name != isa}, file)
    assert isa in available_isas(found.library)
    assert (failed_isas(found.library), caplog.records) == ([], [])


def test_a_compiler_that_does_not_know_the_newest_set_makes_a_library_without_it(
    load: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    newest, *older = BEST_FIRST
    compiler = find_compiler()
    assert compiler is not None
    old = tmp_path / "old-compiler"
    old.write_text(
        f'#!/bin/sh\ncase "$*" in *-mamx* | *+i8mm*) exit 1 ;; esac\nexec {shlex.join(compiler.command)} "$@"\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("CC", str(old))
    found = load(dict.fromkeys(older), f"isa_{newest}.c")
    assert available_isas(found.library) == ["portable", *reversed(older)]
