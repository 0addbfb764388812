"""Sources with trained heads: their places and features, and that they only ever cost speed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.drafters.heads.calibration import calibrated
from outrider.drafters.trained.heads import source_of_head
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.toy import TableModel
from outrider.verify.draft import Draft
from outrider.verify.shapes import breadth_first, likeliest
from outrider_torch.drafters.medusa import MedusaDrafter
from outrider_torch.heads import load_head, save_head
from tests import small_models
from tests.small_engines import generate, request, run
from tests.torch_drafters.heads import KINDS, ahead_of_a_cycle, cycle, perfect, random_head, served

TREES = (None, (2, 1, 1), "dynamic")
TARGET = small_models.llama("fp32", tie_embeddings=False, max_seq_len=64)


def ask(engine: Engine, *requests: Request) -> list[list[int]]:
    """Outputs of requests whose sources did not fail."""
    run(engine, *requests)
    assert [r.stats.draft_error for r in requests] == [None] * len(requests)
    return [list(r.output) for r in requests]


def rounds(r: Request) -> list[tuple[int, int]]:
    """Drafted and accepted, of steps with a draft that had room for three tokens."""
    return [(drafted, accepted) for drafted, accepted in r.stats.rounds[:-1] if drafted]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", ["medusa", "blockwise", "eagle"])
def test_a_perfect_head_is_always_right(kind: str, tree: Any) -> None:
    """It adds to the feature it reads what lies between that and the token it drafts, so a slip of one place shows."""
    r = request([0, 1, 2, 3], SamplingParams(max_tokens=30), draft=kind, spec_length=3, tree=tree, tree_nodes=6)
    assert ask(served(cycle(), perfect(kind)), r) == [[(4 + i) % 6 for i in range(30)]]
    assert len(rounds(r)) >= 6
    assert all(accepted == 3 for _, accepted in rounds(r))


@pytest.mark.parametrize("spec_length", [3, "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_of_one_token(kind: str, spec_length: int | str) -> None:
    """Nothing has been read of it when its first step begins."""
    head = random_head(kind)
    engine = served(TARGET, head)
    r = request([5], SamplingParams(max_tokens=12), draft=source_of_head(head), spec_length=spec_length)
    assert ask(engine, r) == [generate(engine, [5], SamplingParams(max_tokens=12))]


@pytest.mark.parametrize("tree", TREES)
def test_perfect_look_ahead_embeddings_are_always_right(tree: Any) -> None:
    target, head = ahead_of_a_cycle()
    r = request([0, 1, 2, 3], SamplingParams(max_tokens=30), draft="pass", spec_length=3, tree=tree, tree_nodes=6)
    assert ask(served(target, head), r) == [[(4 + i) % 6 for i in range(30)]]
    assert len(rounds(r)) >= 6
    assert all(accepted == 3 for _, accepted in rounds(r))


@pytest.mark.parametrize("kind", ["medusa", "blockwise", "eagle"])
def test_a_head_misplaced_by_one_is_never_right(kind: str) -> None:
    """So that the tests above can fail."""

    class Late(TableModel):
        """Hands out each token's feature one place too late."""

        def forward(self, *args: Any) -> Any:
            out = super().forward(*args)
            if out.features is not None:
                out.features[:] -= 1
            return out

    r = request([0, 1, 2, 3], SamplingParams(max_tokens=30), draft=kind, spec_length=3)
    ask(served(Late(cycle().table), perfect(kind)), r)
    assert sum(accepted for _, accepted in rounds(r)) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
def test_output_is_the_target_s_own(kind: str, temperature: float) -> None:
    head = random_head(kind, own_lm_head=kind == "blockwise")
    engine = served(TARGET, head)
    params = SamplingParams(max_tokens=20, temperature=temperature, seed=3)
    plain = generate(engine, small_models.ids(9), params)
    for tree in (*TREES, "learned"):
        r = request(small_models.ids(9), params, draft=source_of_head(head), tree=tree, tree_nodes=6, spec_length=3)
        assert ask(engine, r) == [plain]
        assert r.stats.num_draft_tokens > 0
        if kind == "pass":  # its first guess is the target's own draw
            assert all(accepted >= 1 for _, accepted in rounds(r))


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_requests_together_are_as_alone(kind: str, paged: bool) -> None:
    """Prompts in chunks, different trees, one request without drafts."""
    head = random_head(kind)
    source, cache = source_of_head(head), "paged" if paged else "contiguous"
    engine = served(TARGET, head, max_batched_tokens=24, kind=cache)
    prompts = [small_models.ids(n, seed=n) for n in (30, 3, 12, 7)]
    params = [SamplingParams(max_tokens=14, temperature=t, seed=i) for i, t in enumerate((0, 0.9, 0, 0.9))]
    drafts = [source, source, "none", source]
    trees = [None, (2, 2), None, "dynamic"]
    plain = [generate(engine, p, own) for p, own in zip(prompts, params, strict=True)]
    requests = [
        request(p, own, id=str(i), draft=d, tree=t, tree_nodes=6)
        for i, (p, own, d, t) in enumerate(zip(prompts, params, drafts, trees, strict=True))
    ]
    assert ask(engine, *requests) == plain
    assert all(r.stats.num_draft_tokens > 0 for r in requests if r.speculation.draft != "none")


@pytest.mark.parametrize("kind", KINDS)
def test_preempted_requests_go_on(kind: str) -> None:
    head = random_head(kind)
    engine = served(TARGET, head, kind="paged", tokens=80, block_size=8, slots=3)
    params = SamplingParams(max_tokens=30)
    prompts = [small_models.ids(9, seed=i) for i in range(3)]
    plain = [generate(engine, p, params) for p in prompts]
    requests = [request(p, params, id=str(i), draft=source_of_head(head)) for i, p in enumerate(prompts)]
    assert ask(engine, *requests) == plain
    assert engine.stats.preemptions > 0


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
@pytest.mark.parametrize("paged", [False, True])
def test_a_cached_prefix_has_no_features_and_costs_nothing_else(kind: str, paged: bool) -> None:
    """Heads begin with the first token that is run; they are as right as ever."""
    engine = served(cycle(), perfect(kind), kind="paged" if paged else "contiguous", block_size=4)
    prompt = [i % 6 for i in range(16)]
    for again in (False, True, True):
        r = request(prompt, SamplingParams(max_tokens=20), draft=kind, spec_length=3)
        ask(engine, r)
        assert (r.stats.cached_prompt_tokens > 0) == again
        assert all(accepted == 3 for _, accepted in rounds(r))


@pytest.mark.parametrize("combination", ["eagle+ngram", "ngram,medusa", "eagle/ngram", "eagle+medusa+pass"])
def test_heads_combine_with_other_sources(combination: str) -> None:
    engine = served(TARGET, random_head("eagle3"), random_head("medusa"), random_head("pass"))
    params = SamplingParams(max_tokens=20, temperature=0.5, seed=1)
    plain = generate(engine, small_models.ids(9), params)
    assert ask(engine, request(small_models.ids(9), params, draft=combination)) == [plain]


def test_features_of_two_layers_reach_those_who_asked_for_them() -> None:
    """medusa reads the last layer, eagle3 two others, all from one run."""
    engine = served(TARGET, random_head("eagle3", feature_layers=(1,)), random_head("medusa"))
    drafter: Any = engine.drafters["medusa"]
    alone = served(TARGET, random_head("medusa"))
    both = request(small_models.ids(9), SamplingParams(max_tokens=9), draft="eagle,medusa")
    one = request(small_models.ids(9), SamplingParams(max_tokens=9), draft="medusa")
    engine.add(both)
    alone.add(one)
    engine.step(), alone.step()
    other: Any = alone.drafters["medusa"]
    assert isinstance(drafter, MedusaDrafter)
    assert small_models.identical(drafter._last["r"][1], other._last["r"][1])


def test_features_are_computed_only_for_those_who_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = served(TARGET, random_head("medusa"))
    asked = []
    forward = type(TARGET).forward

    def recorded(self: Any, batch: Any, cache: Any) -> Any:
        asked.append(batch.features)
        return forward(self, batch, cache)

    monkeypatch.setattr(type(TARGET), "forward", recorded)
    ask(engine, request(small_models.ids(5), draft="ngram"))
    assert set(asked) == {()}
    ask(engine, request(small_models.ids(5), draft="medusa"))
    assert (2,) in asked


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_head_drafts_the_same(kind: str, tmp_path: Path) -> None:
    made = random_head(kind)
    made.to(torch.bfloat16).to(torch.float32)
    save_head(tmp_path, made, made.config)  # type: ignore[arg-type]
    loaded, config = load_head(tmp_path, torch.float32)
    assert config == made.config
    assert drafts_of(loaded) == drafts_of(made) != drafts_of(random_head(kind, seed=1))


def drafts_of(head: nn.Module) -> list[tuple[int, ...]]:
    """Every draft on the way through a text."""
    engine = served(TARGET, head)
    drafter: Any = engine.drafters[source_of_head(head)]
    propose, said = drafter.propose, list[tuple[int, ...]]()

    def recording(*args: Any) -> Any:
        drafts = propose(*args)
        said.extend(draft.tokens for draft in drafts)
        return drafts

    drafter.propose = recording
    ask(engine, request(small_models.ids(9), SamplingParams(max_tokens=20), draft=source_of_head(head), spec_length=3))
    return said


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("kind", ["medusa", "eagle3", "dflash"])
def test_calibrated_heads_report_what_their_guesses_are_worth(kind: str, tree: Any) -> None:
    """Scores of a greedy request alone; tokens and outputs stay, and so does what verifiers get."""
    fit = ((2.0, -0.5, 1.5, -1.0), (0.7, 0.3, 0.6, 0.1))
    options: tuple[dict[str, Any], ...] = ({}, {"calibration": fit})
    for params in (SamplingParams(max_tokens=9), SamplingParams(max_tokens=9, temperature=0.8, seed=3)):
        plain, worth = (first_draft(random_head(kind, **own), params, tree) for own in options)
        assert plain.scores is not None
        assert worth.scores is not None
        if not params.greedy:
            assert (worth.tokens, worth.scores) == (plain.tokens, plain.scores)
        elif tree == "dynamic":  # whose choice of nodes is by their scores
            assert worth.scores != plain.scores
        else:
            assert (worth.tokens, worth.parents) == (plain.tokens, plain.parents)
            for parent in {*plain.parents}:
                nodes = [i for i, above in enumerate(plain.parents) if above == parent]
                logs = [math.log(plain.scores[i]) for i in nodes]
                (better,) = calibrated([logs], fit, plain.depths[nodes[0]])
                assert [math.log(worth.scores[i]) for i in nodes] == pytest.approx(better, rel=1e-4)


def first_draft(head: nn.Module, params: SamplingParams, tree: Any) -> Draft:
    """Of a request, whose outputs are those of plain decoding."""
    engine, drafts = served(TARGET, head), list[Draft]()
    drafter: Any = engine.drafters[source_of_head(head)]
    propose = drafter.propose

    def recording(requests: Any, budgets: Any) -> Any:
        found = propose(requests, budgets)
        drafts.extend(draft for draft in found if draft)
        return found

    drafter.propose = recording
    r = request(small_models.ids(9), params, draft=source_of_head(head), tree=tree, tree_nodes=6, spec_length=3)
    assert ask(engine, r) == [generate(served(TARGET), small_models.ids(9), params)]
    return drafts[0]


def test_a_failing_head_costs_speed_only() -> None:
    head = random_head("eagle3")
    for parameter in head.parameters():
        parameter.fill_(3e38)  # products overflow
    engine = served(TARGET, head)
    r = request(small_models.ids(9), draft="eagle")
    assert [*run(engine, r)] == ["r"]
    assert list(r.output) == generate(engine, small_models.ids(9))
    assert "eagle" in r.drafts.disabled_sources
    assert engine.cache.free_tokens() == CacheSpec(max_seq_len=64).max_seq_len * 4


def test_rows_are_given_back() -> None:
    engine = served(TARGET, random_head("eagle3"))
    (cache,) = (c for c in engine.drafters["eagle"].caches)
    before = cache.free_tokens()
    ask(engine, *(request(small_models.ids(9), id=str(i), draft="eagle", tree="dynamic") for i in range(6)))
    assert cache.free_tokens() == before
    cache.check()


def test_the_likeliest_shape_follows_depth_and_rank() -> None:
    """Of three nodes: the best two at the top (0.6, 0.3), then 0.6 * 0.5 beats 0.1."""
    acceptance = ((0.6, 0.3, 0.1), (0.5, 0.1))
    assert likeliest(acceptance, 3, 5) == (-1, -1, 0)
    assert likeliest(acceptance, 3, 1) == (-1, -1, -1)
    assert likeliest(acceptance, 1, 2) == (-1,)
    assert likeliest(acceptance, 100, 2) == (-1, -1, -1, 0, 0, 1, 1, 2, 2)
    shape = likeliest(((0.5, 0.2), (0.9, 0.05), (0.9, 0.05)), 4, 3)
    assert shape == breadth_first(shape, 3) == (-1, -1, 0, 2)


def test_a_learned_tree_has_the_shape_its_head_was_measured_to_want() -> None:
    engine = served(TARGET, random_head("medusa", acceptance=((0.6, 0.3, 0.1), (0.5, 0.1))))
    r = request(small_models.ids(9), SamplingParams(max_tokens=12), draft="medusa", tree="learned", tree_nodes=3)
    ask(engine, r)
    assert {drafted for drafted, _ in rounds(r)} == {3}
