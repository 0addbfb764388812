"""Every draft source with every verifier and every sampling option, through the real engine.

A new source is one line of ``SOURCES``; a new verifier is found by itself; a new option is one line of ``OPTIONS``.
The fast suite takes every pair of them (``tests.pairwise``), as ``test_laws`` works out each verifier's law; the slow
one takes the full product.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.cache import CacheSpec, KVCache
from outrider.config import SOURCES as RECORDS
from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.datastore import collect
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.heads.masked import DSpark
from outrider.drafters.model.model import ModelDrafter
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.text.grammar import GrammarDrafter
from outrider.drafters.text.lookup import LookupDrafter
from outrider.drafters.text.ngram import NgramDrafter
from outrider.drafters.text.prediction import PredictionDrafter
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.drafters.trained.heads import source_of_head
from outrider.drafters.trained.level_drafter import LevelDrafter
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.batch import ForwardBatch, ForwardOutput, Span
from outrider.models.toy import TableModel, sequence_probs
from outrider.verify.constraint import Constraint
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict
from outrider.verify.noise import Noise, Purpose
from outrider.verify.tree import path_to
from outrider.verify.verifiers.base import Siblings
from outrider.verify.verifiers.recursive import Recursive
from outrider_drafters.baselines import RandomDrafter, bigram, unigram
from outrider_drafters.draft_table import count
from outrider_drafters.hierarchical import HierarchicalDrafter
from outrider_drafters.layer_skip import LayerSkipDrafter
from outrider_drafters.lookahead import LookaheadDrafter
from outrider_drafters.models import ModelsDrafter
from outrider_drafters.recycling import RecyclingDrafter
from outrider_drafters.universal import UniversalDrafter
from outrider_torch.heads import make_head
from tests.arrays import Floats, log_softmax
from tests.pairwise import pairwise, slow_unless, spread
from tests.small_engines import Scripted, run
from tests.tokenizer.letters import alphabet, letters

from .toy import BY_NAME, EXACT, LOSSY, Forgetful, Redrawn, ReplacementRatios, p_value

VOCAB, SLOTS = 4, 100
CACHE = CacheSpec(slots=SLOTS, max_seq_len=64)
DRAFT = TableModel.random(VOCAB, order=2, seed=4)  # far enough from the target for mistakes to show
OTHER = TableModel.random(VOCAB, order=2, seed=5)
PROMPT = (0, 1, 2, 0, 1, 3, 0, 1)  # repeats, so that every source has something to say


def random_tree(view: RequestView, budget: int) -> Draft:
    """Any tree of any tokens, duplicates among siblings included."""
    rng = random.Random(f"{view.id} {len(view.tokens)}")
    n = rng.randint(0, budget)
    return Draft(tuple(rng.randrange(VOCAB) for _ in range(n)), tuple(rng.randint(-1, i - 1) for i in range(n)))


class Target(TableModel):
    """Its first layers say what the draft model says; cache rows are as in any run."""

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        return super().forward(batch, cache) if batch.layers is None else DRAFT.forward(batch, cache)


TARGET = Target.random(VOCAB, order=2, seed=1)


def draft_model(model: TableModel = DRAFT) -> DraftModel:
    return DraftModel(model, vocab_size=VOCAB, cache=CACHE)


def model(cache: KVCache) -> Drafter:
    return ModelDrafter(draft_model())


def models(cache: KVCache) -> Drafter:
    return ModelsDrafter([ModelDrafter(draft_model()), ModelDrafter(draft_model(OTHER))])


def universal(cache: KVCache) -> Drafter:
    """A draft model whose tokens are the target's in another order, and a pair of them."""
    target = alphabet(VOCAB)
    own = letters([*target[::-1], target[0] + target[1]], (target[0], target[1]))
    table = TableModel.random(VOCAB + 1, order=2, seed=6)
    drafting = DraftModel(table, vocab_size=VOCAB + 1, cache=CACHE)
    return UniversalDrafter(drafting, own, letters(target), VOCAB)


def hierarchical(cache: KVCache) -> Drafter:
    return HierarchicalDrafter(draft_model(), NgramDrafter(VOCAB))


def hierarchical_models(cache: KVCache) -> Drafter:
    return HierarchicalDrafter(draft_model(), ModelDrafter(draft_model(OTHER)))


def layer_skip(cache: KVCache) -> Drafter:
    return LayerSkipDrafter(TARGET, cache, layers=1, vocab_size=VOCAB)


def trained(kind: str, **dims: Any) -> Callable[[KVCache], Drafter]:
    """A random head of a kind: its guesses are the table's at the wrong places."""

    def make(cache: KVCache) -> Drafter:
        target = TargetFingerprint.of(TARGET.config, TARGET.embed(np.arange(VOCAB)))
        config = HeadConfig(kind=kind, target=target, hidden_size=2, vocab_size=VOCAB, **dims)
        import torch

        torch.manual_seed(7)
        head = make_head(config).requires_grad_(False)
        for parameter in head.parameters():
            parameter.normal_(std=2.0)
        source = source_of_head(head)
        context = DrafterContext(vocab_size=VOCAB, cache=CACHE, heads={source: head}, target=TARGET, target_cache=cache)
        return DrafterRegistry(context)[source]

    return make


class TableHead:
    """A ``HeadRunner`` without attention: an output is half of what the row reads, and a vector of its token.

    It scores three of the four tokens, not in the order of their ids, as a head with a partial vocabulary does.
    """

    def __init__(self) -> None:
        rng = np.random.default_rng(11)
        self._vectors, self._head = rng.normal(size=(VOCAB, 2)), rng.normal(size=(2, 3))
        self.cache = TARGET.new_cache(CACHE)
        self.vocabulary: DraftVocabulary | None = DraftVocabulary(np.array([2, 0, 3]), VOCAB)

    def fuse(self, features: Floats) -> Floats:
        return features

    def run(
        self, features: Floats, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Floats | None = None,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        assert all(self.cache.length(span.slot) == span.start + span.count for span in spans)
        out = (0.5 * features + self._vectors[list(tokens)]).astype(np.float32)
        return out, (out[list(logit_rows)] @ self._head).astype(np.float32)


def mtp(cache: KVCache) -> Drafter:
    return LevelDrafter(TableHead(), (1,), source="mtp", vocab_size=VOCAB)


def assistant(cache: KVCache) -> Drafter:
    """Levels of a head, under the name: the assistant itself needs a target of its family."""
    return LevelDrafter(TableHead(), (1,), source="assistant", vocab_size=VOCAB)


EAGLE = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 2, "intermediate_size": 3, "max_seq_len": 64}
MASKED = EAGLE | {"heads": 3, "num_layers": 2, "feature_layers": (1,), "mask_token_id": 0, "selector_rank": 2}
MASKED |= {"selector_top_k": 2, "conv_taps": 2}
SPARK = EAGLE | {"heads": 3, "num_layers": 2, "feature_layers": (1,), "mask_token_id": 0}
SPARK |= {"dspark": DSpark(rank=2, confidence=True, confidence_reads_token=True)}
BLOCK = EAGLE | {"heads": 3, "num_layers": 2, "selector_rank": 2, "feature_layers": (1,)}


def ngram(cache: KVCache) -> Drafter:
    return NgramDrafter(VOCAB)


def nothing(cache: KVCache) -> Drafter:
    return Scripted(lambda view, budget: EMPTY)


def parts() -> dict[str, Drafter]:
    """What combinations are made of."""
    return {
        "suffix": SuffixDrafter(VOCAB),
        "recycling": RecyclingDrafter(VOCAB),
        "prediction": PredictionDrafter(),
        "unigram": unigram(VOCAB),
        "ngram": NgramDrafter(VOCAB),
        "random": RandomDrafter(VOCAB),
        "lookahead": LookaheadDrafter(),
        "model": ModelDrafter(draft_model()),
    }


PREDICTION = (0, 1, 3, 0, 1, 2, 0, 1, 3, 3, 0, 2)
TABLE = count([0, 1, 2, 0, 1, 3, 0, 2, 3, 1], VOCAB)
STORE = collect([([1, 3], [0, 1, 2, 2, 0]), ([], [3, 1, 0, 2, 1, 1])], VOCAB)


def static_tree(view: RequestView, budget: int) -> Draft:
    """Two children, one below each, two below those, as far as the budget goes, drawn as the verifier wants them."""
    draws, tokens, parents, rows = view.draws(), list[int](), list[int](), list[Floats]()
    level = [-1]
    for depth, width in enumerate((2, 1, 2)):
        above, level = level, []
        for parent in above:
            text = [*view.tokens, *(tokens[i] for i in path_to(parents, parent))]
            row = log_softmax(DRAFT.table[text[-2], text[-1]])
            drawn = draws.siblings(row, min(width, budget - len(tokens)), depth=depth, node=len(tokens))
            level += range(len(tokens), len(tokens) + len(drawn.tokens))
            tokens += drawn.tokens
            parents += [parent] * len(drawn.tokens)
            rows += drawn.rows
    return Draft(tuple(tokens), tuple(parents), np.stack(rows) if rows else None)


def dynamic_tree(view: RequestView, budget: int) -> Draft:
    """The nodes of best joint probability under the draft model, each of them certain rather than drawn: no q."""
    tokens, parents = list[int](), list[int]()
    open_ = [(0.0, -1)]  # nodes to expand, with their log-probability
    found: list[tuple[float, int, int]] = []  # log-probability, token, parent
    while len(tokens) < budget:
        for score, node in open_:
            text = [*view.tokens, *(tokens[i] for i in path_to(parents, node))]
            row = log_softmax(DRAFT.table[text[-2], text[-1]]).tolist()
            found += [(score + more, token, node) for token, more in enumerate(row)]
        best = max(found)
        found.remove(best)
        open_ = [(best[0], len(tokens))]
        tokens.append(best[1])
        parents.append(best[2])
    return Draft(tuple(tokens), tuple(parents))


class Turns:
    """A small grammar: after 1 must come 3, after 3 anything but 2, and the output does not begin with 0."""

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        if any(not self._allowed(output[:i])[token] for i, token in enumerate(output)):
            return None
        return self._allowed(output)

    def _allowed(self, output: Sequence[int]) -> NDArray[np.bool_]:
        last = output[-1] if output else -1
        return np.array({-1: [0, 1, 1, 1], 1: [0, 0, 0, 1], 3: [1, 1, 0, 1]}.get(last, [1, 1, 1, 1]), dtype=np.bool_)


@dataclass(frozen=True)
class Source:
    make: Callable[[KVCache], Drafter]  # given the target's cache
    options: dict[str, Any] = field(default_factory=dict)
    branches: bool = False  # proposes trees, which only some verifiers take

    @property
    def always_chains(self) -> bool:
        """Whether it never branches: some do where the verifier lets them."""
        grows = {"suffix", "recycling", "prediction"} & set(re.findall(r"\w+", self.options.get("draft", "")))
        return not self.branches and not grows


SOURCES: dict[str, Source] = {
    "none": Source(nothing),
    "ngram": Source(ngram),
    "ngram, counts as q": Source(ngram, {"counts_as_q": True}),
    "lookup": Source(lambda cache: LookupDrafter()),
    "model": Source(model),
    "model, cold": Source(model, {"draft_temperature": 0.4}),
    "model, greedy": Source(model, {"draft_temperature": 0.0}),
    "suffix": Source(lambda cache: SuffixDrafter(VOCAB), {"draft": "suffix", "tree_nodes": 7}),
    "suffix, datastore": Source(
        lambda cache: SuffixDrafter(VOCAB, datastore=STORE), {"draft": "suffix", "counts_as_q": True, "tree_nodes": 7}
    ),
    "suffix, counts as q": Source(lambda cache: SuffixDrafter(VOCAB), {"draft": "suffix", "counts_as_q": True}),
    "recycling": Source(lambda cache: RecyclingDrafter(VOCAB), {"draft": "recycling", "tree_nodes": 7}),
    "recycling, as q": Source(lambda cache: RecyclingDrafter(VOCAB), {"draft": "recycling", "counts_as_q": True}),
    "prediction": Source(lambda cache: PredictionDrafter(), {"draft": "prediction", "prediction": PREDICTION}),
    "unigram": Source(lambda cache: unigram(VOCAB)),
    "unigram, counts as q": Source(lambda cache: unigram(VOCAB), {"counts_as_q": True}),
    "bigram": Source(lambda cache: bigram(VOCAB)),
    "bigram, counts as q": Source(lambda cache: bigram(VOCAB), {"counts_as_q": True}),
    "bigram, trained, counts as q": Source(lambda cache: bigram(VOCAB, TABLE), {"counts_as_q": True}),
    "random": Source(lambda cache: RandomDrafter(VOCAB)),
    "grammar": Source(lambda cache: GrammarDrafter()),
    "cascade": Source(nothing, {"draft": "prediction,suffix,unigram", "prediction": PREDICTION[:3]}),
    "best, with q": Source(nothing, {"draft": "ngram/model/random", "counts_as_q": True}),
    "merged": Source(nothing, {"draft": "suffix+recycling+model+random", "tree_nodes": 9}),
    "merged, with trees": Source(nothing, {"draft": "ngram,lookahead+model", "tree": (2, 2)}, branches=True),
    "layer skip": Source(layer_skip),
    "universal": Source(universal),
    "hierarchical": Source(hierarchical),
    "hierarchical, two models": Source(hierarchical_models),
    "eagle": Source(trained("eagle3", feature_layers=(1,), **EAGLE)),
    "eagle 3.1": Source(trained("eagle3", feature_layers=(1,), fc_norm=True, norm_output=True, window=2, **EAGLE)),
    "mtp": Source(mtp),
    "mtp, dynamic tree": Source(mtp, {"tree": "dynamic", "tree_nodes": 6}, branches=True),
    "suffix, mtp": Source(mtp, {"draft": "suffix,mtp"}),
    "dflash": Source(trained("dflash", **BLOCK)),
    "dflash, dynamic tree": Source(trained("dflash", **BLOCK), {"tree": "dynamic", "tree_nodes": 6}, branches=True),
    "diffusion": Source(trained("diffusion", **MASKED), {"draft": "dflash"}),
    "dspark": Source(trained("dspark", **SPARK)),
    "dspark, dynamic tree": Source(trained("dspark", **SPARK), {"tree": "dynamic", "tree_nodes": 6}, branches=True),
    "medusa, static tree": Source(trained("medusa", heads=3), {"tree": (3, 2, 1)}, branches=True),
    "pass": Source(trained("pass", heads=3)),
    "random tree": Source(lambda cache: Scripted(random_tree), branches=True),
    "static tree": Source(lambda cache: Scripted(static_tree), branches=True),
    "dynamic tree": Source(lambda cache: Scripted(dynamic_tree), branches=True),
    "models": Source(models, {"draft": "models", "tree_nodes": 7}, branches=True),
    "lookahead": Source(
        lambda cache: LookaheadDrafter(), {"draft": "lookahead", "lookahead": (3, 3, 3)}, branches=True
    ),
    "jacobi": Source(
        lambda cache: LookaheadDrafter(),
        {"draft": "lookahead", "lookahead": (5, 2, 0)},
        branches=True,
    ),
} | {
    f"{name}, {shape} tree": Source(make, {"tree": tree, "tree_nodes": 6} | options, branches=True)
    for name, make, options in (
        ("model", model, {}),
        ("cold model", model, {"draft_temperature": 0.4}),
        ("models", models, {}),
        ("layer skip", layer_skip, {}),
        ("ngram", ngram, {}),
        ("ngram counts", ngram, {"counts_as_q": True}),
        ("bigram counts", lambda cache: bigram(VOCAB, TABLE), {"counts_as_q": True}),
    )
    for shape, tree in (("static", (3, 2, 1)), ("odd", (-1, 0, -1, 1, 1, 2)), ("dynamic", "dynamic"))
}
MERGED_WITH: dict[str, Callable[[KVCache], Drafter]] = {
    "lookup": lambda cache: LookupDrafter(),
    "bigram": lambda cache: bigram(VOCAB),
    "models": models,
    "universal": universal,
    "layer_skip": layer_skip,
    "hierarchical": hierarchical,
    "eagle": trained("eagle3", feature_layers=(1,), **EAGLE),
    "mtp": mtp,
    "assistant": assistant,
    "dflash": trained("dflash", **BLOCK),
    "dspark": trained("dspark", **SPARK),
    "medusa": trained("medusa", heads=3),
    "blockwise": trained("blockwise", heads=3, intermediate_size=3),
    "pass": trained("pass", heads=3),
    "grammar": lambda cache: GrammarDrafter(),
}
"""Sources that ``parts`` does not have."""
TREES: dict[str, Any] = {"static": (3, 2, 1), "odd": (-1, 0, -1, 1, 1, 2), "dynamic": "dynamic", "learned": "learned"}


def with_a_tree(name: str, shape: str) -> Source:
    """A source merged with one that takes trees, whether it does so itself or not."""
    other = "ngram" if name == "model" else "model"
    options = {"draft": f"{other}+{name}", "tree": TREES[shape], "tree_nodes": 6}
    if name == "prediction":
        options["prediction"] = PREDICTION
    return Source(MERGED_WITH.get(name, nothing), options, branches=True)


MERGED = [name for name in RECORDS if name != "none"]
SOURCES |= {
    f"merged, {name} and {shape} tree": with_a_tree(name, shape)
    for i, name in enumerate(MERGED)
    for j, shape in enumerate(TREES)
    if name == "hierarchical" or i % len(TREES) == j
}
HEADS = {
    "eagle": "rejection",
    "mtp": "block",
    "mtp, dynamic tree": "iterative",
    "suffix, mtp": "rejection",
    "eagle 3.1": "rejection",
    "dflash": "rejection",
    "dflash, dynamic tree": "iterative",
    "diffusion": "block",
    "dspark": "rejection",
    "dspark, dynamic tree": "iterative",
    "pass": "block",
    "medusa, static tree": "sequoia",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "T=0.7": {"temperature": 0.7},
    "top-k": {"temperature": 1.3, "top_k": 2},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.2},
    "repetition": {"repetition_penalty": 1.5},
    "presence, frequency": {"presence_penalty": 0.6, "frequency_penalty": 0.4},
    "bias": {"logit_bias": {2: 1.5, 0: -0.5}},
    "banned": {"banned_token_ids": [3]},
    "allowed": {"allowed_token_ids": [0, 1, 3]},
    "min tokens": {"min_tokens": 2, "stop_token_ids": [1], "ignore_eos": True},
    "all": {"temperature": 1.4, "top_k": 3, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.2, "min_tokens": 2},
    "grammar": {},
    "grammar, all": {
        "temperature": 1.2,
        "top_k": 3,
        "top_p": 0.95,
        "presence_penalty": 0.4,
        "logit_bias": {1: 1.0},
        "min_tokens": 2,
        "stop_token_ids": [2],
    },
}
CONSTRAINTS: dict[str, Constraint] = {"grammar": Turns(), "grammar, all": Turns()}
# Recursive rejection on a chain is rejection, token for token; only that is tested where there are no branches.
AS_REJECTION = [v for v in EXACT if isinstance(BY_NAME[v], Recursive) and v != "rejection"]


def fits(verifier: str, source: str) -> bool:
    return BY_NAME[verifier].takes_trees or not SOURCES[source].branches


CELLS = [(v, s) for v in EXACT for s in SOURCES if fits(v, s)]
COUPLED = [v for v in EXACT if BY_NAME[v].shares_noise]
LENGTHS = (1, 2, 5, 8)
BRIEF = 9  # tokens of a request in the fast suite: some four steps with drafts
FAST = 300  # sequences sampled in the fast suite, in which wrong verifiers show as well


def requests(
    verifier: str,
    source: str,
    params: SamplingParams,
    seeds: range,
    spec_length: int = 3,
    stop: bool = True,
    rules: Constraint | None = None,
) -> list[Request]:
    options: dict[str, Any] = {"draft": "source", "verifier": verifier, "spec_length": spec_length}
    options |= SOURCES[source].options
    stop_ids = frozenset(params.stop_token_ids) if stop else frozenset()
    speculation = SpeculationParams(**options)
    return [
        Request(str(seed), PROMPT, replace(params, seed=seed), speculation, stop_ids, constraint=rules)
        for seed in seeds
    ]


def engine_with(source: str) -> Engine:
    cache = TARGET.new_cache(CACHE)
    name = re.split(r"[+,/]", SOURCES[source].options.get("draft", "source"))[-1]
    made = SOURCES[source].make
    drafters = parts() | ({} if made is nothing and name != "source" else {name: made(cache)})
    return Engine(TARGET, drafters=drafters, eos_token_ids=(), vocab_size=VOCAB, cache=CACHE, kv_cache=cache)


def run_until(engine: Engine, asked: list[Request], length: int) -> None:
    """Serve the requests as far as each one's first ``length`` tokens."""
    for r in asked:
        engine.add(r)
    while engine.busy:
        engine.step()
        for request in [r for r in asked if r.slot is not None and len(r.output) >= length]:
            engine.abort(request.id)
        engine.cache.check()


def serve(source: str, asked: list[Request], length: int | None = None) -> list[tuple[int, ...]]:
    """Outputs, or the first ``length`` tokens of each."""
    if length is None:
        run(engine_with(source), *asked)
    else:
        run_until(engine_with(source), asked, length)
    assert {r.stats.draft_error for r in asked} == {None}
    assert all(r.error is None for r in asked)
    accepted = sum(r.stats.num_accepted_draft_tokens for r in asked)
    drafted = sum(r.stats.num_draft_tokens for r in asked)
    if source == "grammar":  # never wrong, and silent without a grammar
        assert accepted == drafted
        assert (drafted > 0) == any(r.constraint is not None for r in asked)
        assert all(r.stats.num_draft_tokens == 0 for r in asked if r.constraint is None)
    elif source != "none":
        assert 0 < accepted < drafted
    return [tuple(r.output[:length]) for r in asked]


def plain(params: SamplingParams, seed: int, rules: Constraint | None = None) -> tuple[int, ...]:
    """What the target says by itself, without engine, cache or drafts."""
    output: list[int] = []
    noise = Noise(seed)
    while len(output) < params.max_tokens and not (output and output[-1] in params.stop_token_ids):
        text = (*PROMPT, *output)
        logits = TARGET.table[text[-2], text[-1]][None]
        p = TargetRows(logits, params, Context(PROMPT, output), EMPTY, constraint=rules)
        output.append(p.draw(0, noise, len(text)))
    return tuple(output)


GREEDY = pairwise(tuple(SOURCES), tuple(OPTIONS), EXACT, allowed=lambda s, o, v: fits(v, s))
SEEDED = pairwise(tuple(SOURCES), tuple(OPTIONS), LENGTHS, COUPLED, allowed=lambda s, o, k, v: fits(v, s))


@functools.cache
def greedy_tokens(option: str, max_tokens: int) -> tuple[int, ...]:
    return plain(greedy(option, max_tokens), 0, CONSTRAINTS.get(option))


def greedy(option: str, max_tokens: int) -> SamplingParams:
    return SamplingParams(**OPTIONS[option] | {"temperature": 0.0, "max_tokens": max_tokens})


def check_greedy(source: str, rows: Iterable[tuple[str, str]], max_tokens: int) -> None:
    """Requests side by side, a verifier and an option each."""
    rows = list(rows)
    asked: list[Request] = []
    for i, (verifier, option) in enumerate(rows):
        length = (1, 5, 2, 8)[list(OPTIONS).index(option) % 4]
        rules = CONSTRAINTS.get(option)
        params = greedy(option, max_tokens)
        asked += requests(verifier, source, params, range(i, i + 1), spec_length=length, rules=rules)
    run(engine_with(source), *asked)
    assert {r.stats.draft_error for r in asked} == {None}
    found = {row: tuple(r.output) for row, r in zip(rows, asked, strict=True)}
    assert found == {(verifier, option): greedy_tokens(option, max_tokens) for verifier, option in rows}


@pytest.mark.parametrize("source", SOURCES)
def test_greedy_output_is_the_target_s(source: str) -> None:
    check_greedy(source, [(verifier, option) for s, option, verifier in GREEDY if s == source], BRIEF)


@pytest.mark.slow
@pytest.mark.parametrize(("verifier", "source"), CELLS)
def test_greedy_output_is_the_target_s_in_every_cell(verifier: str, source: str) -> None:
    check_greedy(source, [(verifier, option) for option in OPTIONS], 14)


def seeded(verifier: str, source: str, option: str, length: int, seeds: range, max_tokens: int = 12) -> list[Request]:
    """Requests of some option and length of draft."""
    params = SamplingParams(**{"temperature": 1.0, "max_tokens": max_tokens} | OPTIONS[option])
    return requests(verifier, source, params, seeds, length, rules=CONSTRAINTS.get(option))


def check_tokens(source: str, asked: list[Request]) -> None:
    assert serve(source, asked) == [plain(r.params, r.seed, r.constraint) for r in asked]


@pytest.mark.parametrize("source", SOURCES)
def test_the_same_seed_gives_the_same_tokens(source: str) -> None:
    """Requests of every option side by side, each with another length of draft."""
    rows = [row for row in SEEDED if row[0] == source]
    asked = [seeded(v, source, o, k, range(2 * i, 2 * i + 2), BRIEF) for i, (_, o, k, v) in enumerate(rows)]
    check_tokens(source, [r for each in asked for r in each])


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize(("verifier", "source"), [(v, s) for v, s in CELLS if v in COUPLED])
def test_the_same_seed_gives_the_same_tokens_in_every_cell(verifier: str, source: str, option: str) -> None:
    asked = [seeded(verifier, source, option, k, range(10 * k, 10 * k + 2)) for k in LENGTHS]
    check_tokens(source, [r for each in asked for r in each])


def p_of(verifier: str, source: str, options: str, n: int, length: int, wrong: object = None) -> float:
    """Of the first ``length`` tokens; trees get more to do, as a draft is no larger than what is left to generate."""
    tree = SOURCES[source].branches
    params = SamplingParams(**{"temperature": 1.0} | OPTIONS[options] | {"max_tokens": length + 4 * tree})
    first = 10_000 * list(BY_NAME).index(verifier)  # noise of their own, as chance would hit all alike
    rules = CONSTRAINTS.get(options)
    asked = requests(verifier, source, params, range(first, first + n), 8 if tree else 3, stop=False, rules=rules)
    for r in asked:
        r.verifier = wrong or r.verifier  # type: ignore[assignment]
    expected = sequence_probs(TARGET.table, params, PROMPT, length, rules)
    return p_value(expected, serve(source, asked, length))


def one_verifier(source: str) -> str | None:
    """The only one that variants of other sources are sampled with: heads grow as draft models do, say."""
    if source.endswith("odd tree") or (source.startswith("merged, ") and " and " in source):
        return "sequoia"
    return "specinfer" if source.startswith("cold model") else HEADS.get(source)


SAMPLED = [
    (v, s) for v, s in CELLS if (not BY_NAME[v].shares_noise or s in ("none", "model")) and one_verifier(s) in (None, v)
]


# Sources without q are all alike to these verifiers, so that one of them stands for the others; of those that grow into
# several shapes one shape each; and every fourth source of what is left, as seeds show each source's tokens above. And
# rejection of trees on a chain, once for each verifier.
ALIKE = {
    "ngram",
    "suffix",
    "recycling",
    "prediction",
    "unigram",
    "bigram",
    "cascade",
    "grammar",
    "random tree",
    "jacobi",
}
SHAPED = [s for s in SOURCES if s.endswith(("static tree", "odd tree", "dynamic tree")) and "," in s and s not in HEADS]
SAMPLED_FAST = [
    *spread(
        [
            (v, s)
            for v, s in SAMPLED
            if s not in ALIKE | {*SHAPED} - {*SHAPED[::4]} and not (v in AS_REJECTION and SOURCES[s].always_chains)
        ],
        factor=1,
    )[::4],
    *((v, "model") for v in AS_REJECTION),
]


@pytest.mark.parametrize(("verifier", "source"), slow_unless(SAMPLED, SAMPLED_FAST))
def test_samples_follow_the_target_for_every_source(verifier: str, source: str) -> None:
    """Found with probability 0.9: a chi-square distance of 0.07, some 0.1 in total variation; finer in test_laws.

    With the fewer samples of the fast suite 0.16, some 0.16 in total variation.
    """
    if verifier in AS_REJECTION and SOURCES[source].always_chains:
        params = SamplingParams(temperature=1.0, max_tokens=8)
        outputs = [serve(source, requests(v, source, params, range(20))) for v in (verifier, "rejection")]
        assert outputs[0] == outputs[1]
    else:
        n = FAST if (verifier, source) in SAMPLED_FAST else 700
        assert p_of(verifier, source, "bare", n=n, length=3) > 1e-3


OPTION_CELLS = [
    (v, s, o) for v, s in (("rejection", "model"), ("sequoia", "static tree")) for o in OPTIONS if o != "bare"
]

OPTION_CELLS_FAST = [("rejection", "model", "grammar, all"), ("sequoia", "static tree", "all")]


@pytest.mark.parametrize(
    ("verifier", "source", "options"),
    slow_unless(OPTION_CELLS, OPTION_CELLS_FAST),
)
def test_samples_follow_the_target_under_every_option(verifier: str, source: str, options: str) -> None:
    """Options act on rows of p before any verifier sees them; ``test_laws`` has every verifier with every option."""
    n = FAST if (verifier, source, options) in OPTION_CELLS_FAST else 500
    assert p_of(verifier, source, options, n=n, length=3) > 1e-3


GRAMMAR_CELLS = [
    *(("rejection", s) for s in ("grammar", "ngram, counts as q", "lookup")),
    *((v, "model") for v in ("block", "iterative", "specinfer")),
    *(
        (v, s)
        for v in ("iterative", "specinfer", "sequoia", "traversal", "univer")
        for s in ("random tree", "model, static tree")
    ),
]


GRAMMAR_CELLS_FAST = spread(GRAMMAR_CELLS, factor=0)[::2]


@pytest.mark.parametrize(("verifier", "source"), slow_unless(GRAMMAR_CELLS, GRAMMAR_CELLS_FAST))
def test_samples_follow_a_grammar_that_sources_know_or_not(verifier: str, source: str) -> None:
    n = FAST if (verifier, source) in GRAMMAR_CELLS_FAST else 500
    assert p_of(verifier, source, "grammar", n=n, length=3) > 1e-3


def test_a_grammar_that_is_not_kept_to_is_caught() -> None:
    params = SamplingParams(temperature=1.0, max_tokens=3)
    expected = sequence_probs(TARGET.table, params, PROMPT, 3, CONSTRAINTS["grammar"])
    assert p_value(expected, serve("model", requests("rejection", "model", params, range(FAST)))) < 1e-6


class TooKind:
    """Accepts with probability p(token), then q's error goes uncorrected: the recovered token comes from p."""

    name, exact, shares_noise, takes_trees = "too kind", False, False, False
    siblings = Siblings.WITHOUT_REPLACEMENT

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        path: list[int] = []
        for node, token in enumerate(draft.tokens):
            if noise.uniform(position, Purpose.ACCEPT, node) >= float(p.probs(node)[token]) + 0.2:
                break
            path.append(node)
        row = len(path)
        return Verdict(tuple(path), noise.draw(p.log_weights(row), position, Purpose.RECOVER, row))


CHAINS = [(s,) for s in SOURCES if s not in ("none", "grammar", "pass") and not SOURCES[s].branches]


CHAINS_FAST = [("model",), ("suffix",), ("ngram, counts as q",)]


@pytest.mark.parametrize("source", slow_unless(CHAINS, CHAINS_FAST))
def test_a_wrong_verifier_is_caught(source: str) -> None:
    """Not with pass: the first tokens it drafts are the target's own, which even the wrong rule does not bias."""
    n = FAST if (source,) in CHAINS_FAST else 1500  # sources that draft little bias little
    assert p_of("rejection", source, "bare", n=n, length=3, wrong=TooKind()) < 1e-4


LOSSY_CELLS = [(v, s) for v in LOSSY for s in ("model", "static tree")]


@pytest.mark.parametrize(("verifier", "source"), slow_unless(LOSSY_CELLS, spread(LOSSY_CELLS, factor=0)))
def test_a_lossy_verifier_is_caught(verifier: str, source: str) -> None:
    n = FAST if (verifier, source) == ("typical", "static tree") else 1000  # the others are nearer to the target
    assert p_of(verifier, source, "bare", n=n, length=3) < 1e-6
    assert {r.stats.exact for r in requests(verifier, source, SamplingParams(), range(1))} == {False}
    assert {r.stats.exact for v in EXACT for r in requests(v, source, SamplingParams(), range(1))} == {True}


WRONG_ON_TREES = [(Forgetful("wrong"),), (Redrawn("wrong"),), (ReplacementRatios("wrong"),)]


@pytest.mark.parametrize("wrong", slow_unless(WRONG_ON_TREES, WRONG_ON_TREES[:1]), ids=type)
def test_a_wrong_verifier_of_trees_is_caught(wrong: Recursive) -> None:
    assert p_of("sequoia", "static tree", "bare", n=400, length=3, wrong=wrong) < 1e-4


def test_the_enumeration_is_a_distribution() -> None:
    for name, options in OPTIONS.items():
        params = SamplingParams(**{"temperature": 1.0} | options)
        probs = sequence_probs(TARGET.table, params, PROMPT, 3, CONSTRAINTS.get(name))
        assert probs.shape == (VOCAB**3,)
        assert float(probs.sum()) == pytest.approx(1.0)
    greedy = sequence_probs(TARGET.table, SamplingParams(), PROMPT, 2)
    assert np.sort(greedy)[-2:].tolist() == [0.0, 1.0]
