"""Weights replaced in place: the same bits as a fresh load of the new ones, and nothing left of the old ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider import LLM, AsyncLLM, SamplingParams, SpeculationParams
from outrider.cache.contiguous import ContiguousCache
from outrider.errors import ConfigError, InvalidRequestError, ModelFormatError, ModelNotFoundError, WeightsReplacedError
from outrider.native.library import library
from tests.model_folders import model_folder

pytestmark = pytest.mark.skipif(library() is None, reason="no native library here")

PROMPTS = [[*range(5, 40)] * 4, [*range(5, 40)] * 3, [7, 8, 9]]
PARAMS = [SamplingParams(max_tokens=12, temperature=t, seed=1, logprobs=2, ignore_eos=True) for t in (0, 1, 0.7)]
LONG = SamplingParams(max_tokens=40, ignore_eos=True)
Bits = list[tuple[list[int], Any]]
Plain = dict[Path, tuple[Bits, list[int]]]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "old", max_position_embeddings=256)


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory, old: Path) -> Path:
    """The same model after some training."""
    folder = model_folder(tmp_path_factory.mktemp("models") / "new", max_position_embeddings=256)
    generator = torch.Generator().manual_seed(5)
    given = load_file(old / "model.safetensors")
    save_file(
        {name: (w.float() + 0.05 * torch.randn(w.shape, generator=generator)).to(w.dtype) for name, w in given.items()},
        folder / "model.safetensors",
    )
    return folder


@pytest.fixture(scope="module")
def plain(old: Path, new: Path) -> Plain:
    """Of both weights, loaded afresh: outputs without drafts, and a long one."""
    found = {}
    for folder in (old, new):
        with LLM(str(folder), draft="none", threads=2) as llm:
            found[folder] = bits(llm, "none"), llm.generate(PROMPTS[:1], LONG)[0].token_ids
    return found


def state_dict(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def bits(llm: LLM, draft: str = "suffix") -> Bits:
    speculation = SpeculationParams(draft=draft, spec_length=4)
    return [(each.token_ids, each.logprobs) for each in llm.generate(PROMPTS, PARAMS, speculation=speculation)]


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16", "kv_cache": "paged"},
        pytest.param({"dtype": "q8_0", "draft_model": True}, marks=pytest.mark.slow),
        pytest.param({"dtype": "float32", "draft_layers": 1}, marks=pytest.mark.slow),
        pytest.param({"dtype": "q4_1", "kv_cache_dtype": "int8"}, marks=pytest.mark.slow),
        pytest.param({"dtype": "float32", "implementation": "torch"}, marks=pytest.mark.slow),
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_outputs_are_those_of_a_fresh_load(old: Path, new: Path, options: dict[str, Any]) -> None:
    draft = "suffix"
    if options.pop("draft_model", False):
        options, draft = {**options, "draft_model": str(old), "draft": "suffix,model"}, "suffix,model"
    elif "draft_layers" in options:
        options, draft = {**options, "draft": "layer_skip"}, "layer_skip"
    with LLM(str(new), threads=2, **options) as fresh, LLM(str(old), threads=2, **options) as llm:
        wanted, before = bits(fresh, draft), bits(llm, draft)
        assert wanted != before
        llm.update_weights(state_dict(new))
        assert bits(llm, draft) == wanted
        assert llm.generate(PROMPTS, PARAMS)[0].stats.cached_prompt_tokens > 0  # rows of the new weights
        llm.update_weights(old)
        assert bits(llm, draft) == before
        llm.update_weights((name, w.float().numpy()) for name, w in state_dict(new).items())
        assert bits(llm, draft) == wanted


def test_rows_of_the_old_weights_would_change_the_output(
    old: Path, new: Path, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the prefix cache is not forgotten."""
    with LLM(str(old), draft="none") as llm:
        assert bits(llm, "none") == plain[old][0]
        monkeypatch.setattr(ContiguousCache, "forget_prefixes", lambda self: None)
        llm.update_weights(new)
        assert bits(llm, "none") != plain[new][0]


@pytest.mark.slow
def test_saved_sessions_are_of_their_weights(old: Path, new: Path, plain: Plain, tmp_path: Path) -> None:
    with LLM(str(old), draft="none", session_dir=str(tmp_path)) as llm:
        assert bits(llm, "none") == plain[old][0]
        for weights in (new, old):
            llm.update_weights(weights)
            (output,) = llm.generate(PROMPTS[:1], PARAMS[:1])
            assert output.stats.cached_prompt_tokens == 0
            assert (output.token_ids, output.logprobs) == plain[weights][0][0]
        llm.update_weights(new)
        assert llm.generate(PROMPTS[:1], PARAMS[:1])[0].stats.cached_prompt_tokens > 0  # saved above, of these weights
        assert bits(llm, "none") == plain[new][0]


def test_memory_that_was_given_is_not_needed_afterwards(llm_of_old: LLM, old: Path, new: Path, plain: Plain) -> None:
    given = {name: w.float().numpy() for name, w in state_dict(new).items()}
    shared = SharedMemory(create=True, size=sum(each.nbytes for each in given.values()))
    at, views = 0, {}
    for name, each in given.items():
        views[name] = np.ndarray(each.shape, np.float32, shared.buf, at)
        views[name][...] = each
        at += each.nbytes
    llm_of_old.update_weights(views)
    for name in given:
        views.pop(name).fill(np.nan)
    shared.close()  # raises BufferError if anything still points to it
    shared.unlink()
    assert bits(llm_of_old) == plain[new][0]
    llm_of_old.update_weights(old)
    assert bits(llm_of_old) == plain[old][0]


def without_last(given: dict[str, Tensor]) -> Any:
    del given["model.norm.weight"]
    return given


def cut(given: dict[str, Tensor]) -> Any:
    return given | {"model.norm.weight": given["model.norm.weight"][:-1]}


def integers(given: dict[str, Tensor]) -> Any:
    return given | {"model.norm.weight": given["model.norm.weight"].long()}


def damaged(given: dict[str, Tensor]) -> Any:
    return given | {"model.layers.0.mlp.down_proj.weight": given["model.layers.0.mlp.down_proj.weight"] * torch.nan}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (without_last, "tensor model.norm.weight is missing"),
        (cut, r"tensor model.norm.weight has shape \[63\], but the configuration says \[64\]"),
        (integers, "tensor 'model.norm.weight' has dtype 'int64'"),
        (damaged, "NaN"),
        (lambda _: {}, "2 layers are declared, but there are 0 tensors"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_the_old_ones_stay(
    llm_of_old: LLM, new: Path, change: Callable[[dict[str, Tensor]], Any], named: str
) -> None:
    before, digest = bits(llm_of_old), llm_of_old.weights_digest
    with pytest.raises(ModelFormatError, match=named):
        llm_of_old.update_weights(change(state_dict(new)))
    assert bits(llm_of_old) == before
    assert llm_of_old.weights_digest == digest


@pytest.fixture(scope="module")
def llm_of_old(old: Path) -> LLM:
    return LLM(str(old), threads=2)


def test_files_that_are_no_weights_of_the_model_are_refused(llm_of_old: LLM, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no"):
        llm_of_old.update_weights(tmp_path / "nowhere.safetensors")
    other = model_folder(tmp_path / "other", max_position_embeddings=256, rope_theta=77.0)
    with pytest.raises(ModelFormatError, match=r"is another model .*rope"):
        llm_of_old.update_weights(other)
    with pytest.raises(InvalidRequestError, match="running='keep' is not valid: use 'wait' or 'abort'"):
        llm_of_old.update_weights(tmp_path, running="keep")  # type: ignore[arg-type]
    with LLM(str(other), draft="none") as llm:
        object.__setattr__(llm.config, "tensor_parallel_size", 2)
        with pytest.raises(ConfigError, match="tensor_parallel_size=2"):
            llm.update_weights(other)


def test_requests_that_run_end_with_the_old_weights(llm_of_old: LLM, old: Path, new: Path, plain: Plain) -> None:
    llm, before, after = llm_of_old, plain[old][1], plain[new][1]
    tokens = llm.stream(PROMPTS[0], LONG)
    begun = [next(tokens).token_id for _ in range(3)]
    llm.update_weights(new)
    assert llm.generate(PROMPTS[:1], LONG)[0].token_ids == after
    assert begun + [step.token_id for step in tokens] == before
    tokens = llm.stream(PROMPTS[0], LONG)
    next(tokens)
    llm.update_weights(old, running="abort")
    with pytest.raises(WeightsReplacedError, match="send it again"):
        list(tokens)
    assert llm.generate(PROMPTS[:1], LONG)[0].token_ids == before


def test_tasks_wait_or_are_told(llm_of_old: LLM, old: Path, new: Path, plain: Plain) -> None:
    async def main() -> None:
        async with AsyncLLM(llm_of_old) as llm:
            tokens = llm.stream(PROMPTS[0], LONG)
            begun = [(await anext(tokens)).token_id]
            update = asyncio.create_task(llm.update_weights(new))
            begun += [step.token_id async for step in tokens]
            await update
            assert begun == plain[old][1]
            assert (await llm.generate(PROMPTS[0], LONG)).token_ids == plain[new][1]
            long = llm.stream(PROMPTS[0], SamplingParams(max_tokens=100, ignore_eos=True))
            await anext(long)
            with pytest.raises(ModelFormatError):
                await llm.update_weights({})
            await llm.update_weights(old, running="abort")
            assert (await llm.generate(PROMPTS[0], LONG)).token_ids == plain[old][1]
            with pytest.raises(WeightsReplacedError):
                [step async for step in long]

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("keep", [False, True])
def test_learned_drafts_are_dropped_unless_they_are_kept(old: Path, keep: bool) -> None:
    with LLM(str(old), draft="suffix", datastore="none", spec_length=4) as llm:
        first = llm.generate(PROMPTS[:1], LONG)[0]
        again = llm.generate(PROMPTS[:1], LONG)[0]
        llm.update_weights(old, keep_drafts=keep)  # the same answer, and nothing or all of it is known
        found = llm.generate(PROMPTS[:1], LONG)[0]
    assert first.token_ids == again.token_ids == found.token_ids
    assert again.stats.target_runs < first.stats.target_runs
    if keep:
        assert found.stats.target_runs <= again.stats.target_runs
    else:
        assert found.stats.target_runs == first.stats.target_runs
