"""How drafts are made and checked."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from outrider.config import aliases
from outrider.config.combination import AUTO, Combination, parse
from outrider.config.fields import as_ids, checks_names, is_finite, is_int, short_repr
from outrider.config.sources import source_record
from outrider.errors import ConfigError
from outrider.utils.suggest import unknown

VerifierName = Literal[
    "matching", "rejection", "block", "iterative", "specinfer", "sequoia", "traversal", "univer", "lenient", "typical"
]

VERIFIERS: tuple[str, ...] = get_args(VerifierName)

CHAIN_VERIFIERS: tuple[str, ...] = ("rejection", "block")
"""Verifiers whose drafts must not branch."""
MAX_TREE_NODES = 1024
LOOKAHEAD = (5, 3, 3)  # W, N and G where none are given
# Parameters of the lossy verifiers where none are given, and the verifier that each is for.
LENIENCE = 0.5
POSTERIOR_THRESHOLD = 0.09  # Medusa's (Cai et al. 2024)
LOSSY_OPTIONS = {"lenience": "lenient", "posterior_threshold": "typical"}
# With far less all drafts are accepted, whatever the target says. 0.1 is the least lenience that Leviathan et al. 2023
# measure; Medusa's alpha is the root of the threshold.
LEAST = {"lenience": 0.1, "posterior_threshold": 0.01}

AUTO_LENGTH = 16  # nodes that spec_length="auto" may score for a request
FIXED_LENGTH = 5  # what it stands for where it cannot adapt


@checks_names(aliases.SPECULATION)
@dataclass(frozen=True, kw_only=True)
class SpeculationParams:
    """How drafts are made and checked.

    Shared by the engine (its defaults) and a request (its own choice).
    """

    draft: str = AUTO
    """Where drafts come from: auto, none, suffix, model, eagle, ..., or several sources.

    One of ``SOURCES``, or several: ``a,b`` is the first that has a draft, ``a/b`` the one with most accepted tokens,
    ``a+b`` both in one tree (``outrider.config.combination``). ``auto``, for an engine: the draft models if it was
    given any, else ``prediction`` if it was given one, else the best trained head that ``heads`` names, else
    ``suffix``. ``auto``, for a request: ``prediction`` if it has one, else the engine's.
    """
    spec_length: int | Literal["auto"] = "auto"
    """Draft tokens on a path at most, or auto.

    K, the longest path proposed per step. ``auto``: as many as pay, by measured costs and acceptance, for verifiers
    whose output cannot depend on it; the others use 5, so that a seed gives the same tokens again.
    """
    tree: str | Iterable[int] | None = None
    """Draft trees: widths by depth (4,2,1), parents (-1,-1,0), dynamic or learned.

    None: a chain. Widths by depth, as in ``(4, 2, 1)`` or ``"4,2,1"``: every node at a depth has so many children.
    The parents of each node of any other shape, the first being -1 (``core.shapes.optimal`` finds good ones).
    ``"dynamic"``: the ``tree_nodes`` most likely nodes, found anew in each step. ``"learned"``: a trained head's own
    shape, the ``tree_nodes`` nodes that were accepted most when it was measured; dynamic for other sources.
    """
    tree_nodes: int = 16
    """Nodes of a dynamic tree, or of the drafts of several models.

    In general of a draft whose size no shape gives: dynamic trees, those of ``suffix``, and merged drafts.
    """
    lookahead: str | Iterable[int] | None = None
    """W,N,G of lookahead: columns, length of n-grams, n-grams verified per step.

    As in the paper: ``(5, 3, 3)`` or ``"5,3,3"``, which None is too; N = 2 and G = 0 is Jacobi decoding.
    """
    verifier: VerifierName = "matching"
    """matching: same tokens as without drafts; lenient, typical: lossy; all others: same distribution."""
    draft_temperature: float | None = None
    """Sampling temperature of the draft model.

    None follows the request.
    """
    counts_as_q: bool = False
    """Sample drafts from the counts of sources that count, with these counts as q.

    These sources are unigram, bigram, ngram, suffix and recycling; otherwise they draft the most frequent tokens. For
    verifiers that compare p with q.
    """
    prediction: str | Iterable[int] | None = None
    """Text or token ids that the output is expected to resemble, for the source ``prediction``."""
    lenience: float | None = None
    """lenient: no token more than 1/l times too likely.

    In [0.1, 1]; None is ``LENIENCE``.
    """
    posterior_threshold: float | None = None
    """typical: likelier tokens are always accepted, others from its root times exp(-entropy).

    In [0.01, 1]; None is ``POSTERIOR_THRESHOLD``.
    """

    def __post_init__(self) -> None:
        parse(self.draft)
        if self.prediction is not None and not isinstance(self.prediction, str):
            object.__setattr__(self, "prediction", as_ids("prediction", self.prediction))
        if self.spec_length != "auto" and (not is_int(self.spec_length) or self.spec_length < 1):
            raise ConfigError(f"spec_length={self.spec_length!r} is not valid: use at least 1, auto, or draft='none'")
        if self.verifier not in VERIFIERS:
            raise ConfigError(unknown("verifier", self.verifier, VERIFIERS))
        if self.draft_temperature is not None and not (
            is_finite(self.draft_temperature) and self.draft_temperature >= 0
        ):
            raise ConfigError(f"draft_temperature={self.draft_temperature!r} is not valid: use 0 or a positive number")
        if not is_int(self.tree_nodes) or self.tree_nodes < 1:
            raise ConfigError(f"tree_nodes={self.tree_nodes!r} is not valid: use at least 1")
        object.__setattr__(self, "tree", _as_tree(self.tree))
        object.__setattr__(self, "lookahead", _as_lookahead(self.lookahead))
        self._check_branches()
        self._check_lossy()

    def _check_lossy(self) -> None:
        for name, verifier in LOSSY_OPTIONS.items():
            value = getattr(self, name)
            if value is None:
                continue
            if not is_finite(value) or not LEAST[name] <= value <= 1:
                raise ConfigError(f"{name}={value!r} is not valid: use a number from {LEAST[name]:g} to 1")
            if self.verifier != verifier:
                raise ConfigError(
                    f"{name}={value!r} would do nothing with verifier={self.verifier!r}: "
                    f"use verifier={verifier!r}, or leave it out"
                )

    def _check_branches(self) -> None:
        shapes = [source_record(name).shape for name in self.combination.names]
        if self.tree is not None and shapes and not any(shape.takes_tree for shape in shapes):
            raise ConfigError(f"tree={self.tree!r} would not be used: draft={self.draft!r} has a shape of its own")
        branching = any(shape.branches for shape in shapes)
        if self.verifier in CHAIN_VERIFIERS and (self.tree is not None or branching):
            cause = f"draft={self.draft!r}" if self.tree is None else f"tree={self.tree!r}"
            raise ConfigError(f"{cause} branches, and verifier={self.verifier!r} takes chains: use verifier='matching'")

    __repr__ = short_repr

    @property
    def combination(self) -> Combination:
        """The sources that ``draft`` names."""
        return parse(self.draft)

    @property
    def lookahead_shape(self) -> tuple[int, int, int]:
        """W, N and G of ``lookahead``."""
        assert not isinstance(self.lookahead, str)  # it was read when it was checked
        window, ngram, guesses = LOOKAHEAD if self.lookahead is None else self.lookahead
        return window, ngram, guesses


def _as_lookahead(lookahead: str | Iterable[int] | None) -> tuple[int, ...] | None:
    """``lookahead`` of ``SpeculationParams``, checked: None, or three numbers."""
    if lookahead is None:
        return None
    try:
        numbers = tuple(int(n) for n in lookahead.split(",")) if isinstance(lookahead, str) else tuple(lookahead)
    except (TypeError, ValueError):
        numbers = ()
    least = (1, 2, 0)
    if len(numbers) != 3 or not all(is_int(n) and n >= low for n, low in zip(numbers, least, strict=True)):
        raise ConfigError(f"lookahead={lookahead!r} is not valid: use W,N,G of at least 1,2,0, such as 5,3,3")
    window, ngram, guesses = numbers
    if (nodes := (window + guesses) * (ngram - 1)) > MAX_TREE_NODES:
        raise ConfigError(f"lookahead={lookahead!r} has {nodes} nodes: use at most {MAX_TREE_NODES}")
    return numbers


def _as_tree(tree: str | Iterable[int] | None) -> str | tuple[int, ...] | None:
    """``tree`` of ``SpeculationParams``, checked: None, a word, widths, or parents that begin with -1."""
    if tree is None or tree in ("dynamic", "learned"):
        return tree
    remedy = 'use "dynamic", "learned", widths such as "4,2,1", or parents such as "-1,-1,0"'
    try:
        numbers = tuple(int(part) for part in tree.split(",")) if isinstance(tree, str) else tuple(tree)
    except (TypeError, ValueError):
        raise ConfigError(f"tree={tree!r} is not valid: {remedy}") from None
    if not numbers or not all(is_int(i) for i in numbers):
        raise ConfigError(f"tree={tree!r} is not valid: {remedy}")
    if numbers[0] == -1:
        size, valid = len(numbers), all(-1 <= parent < i for i, parent in enumerate(numbers))
    else:
        size, valid = sum(itertools.accumulate(numbers, operator.mul)), min(numbers) >= 1
    if not valid:
        raise ConfigError(f"tree={tree!r} is not valid: widths are at least 1; parents come before their children")
    if size > MAX_TREE_NODES:
        raise ConfigError(f"tree={tree!r} has {size} nodes: use at most {MAX_TREE_NODES}")
    return numbers
