"""The limits of what a request may ask of speculation."""

from __future__ import annotations

import math

from outrider.config import SpeculationParams, source_record
from outrider.config.speculation import LOSSY_OPTIONS
from outrider.llm import LLM
from outrider.verify.shapes import max_depth, max_nodes
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_server.http.errors import invalid
from outrider_server.settings import ServerSettings

PASS_TOKENS = 8  # tokens that cost as much as one pass of the target over one row: weights are read once for all rows


def check_speculation(llm: LLM, settings: ServerSettings, wanted: SpeculationParams) -> None:
    """Raise ApiError 400 for speculation that a request may not ask for.

    A step is over for everyone when its longest draft is, so drafts may cost ``max_draft_tokens``, or as much as
    the server's own. A lossy verifier lets drafts change the output, and other callers' texts teach draft sources:
    it needs the operator's choice or permission.
    """
    same = all(getattr(wanted, name) == getattr(llm.speculation, name) for name in ("verifier", *LOSSY_OPTIONS))
    if not same and not VERIFIERS[wanted.verifier].exact and not settings.allow_lossy:
        raise invalid(
            f"verifier={wanted.verifier!r} changes the output, which this server does not allow: use 'matching', "
            "or start the server with --allow-lossy",
            "speculation.verifier",
            "unsupported",
        )
    most = max(settings.limits.max_draft_tokens, draft_size(llm, llm.speculation))
    size = draft_size(llm, wanted)
    if size > most:
        raise invalid(
            f"speculation asks for drafts that cost as much as {size} tokens, and {most} are allowed here: lower "
            "spec_length or the size of the tree",
            "speculation",
        )


def draft_size(llm: LLM, speculation: SpeculationParams) -> int:
    """The cost of a draft in scored tokens: its nodes or, if that is more, the cost of its levels.

    A level of a length that the engine chooses is only drafted if it pays, and counts once.
    """
    depth = max_depth(speculation, adaptive=True)
    fixed = speculation.spec_length != "auto"
    level = max((_level_cost(llm, name) for name in speculation.combination.names if fixed), default=1.0)
    return max(math.ceil(depth * level), max_nodes(speculation, depth))


def _level_cost(llm: LLM, source: str) -> float:
    """The cost of a level of a source's drafts, in tokens that the target scores; at least 1.

    It is a pass of the target's first layers, or of draft models, over few rows; such a pass takes as long as scoring
    ``PASS_TOKENS`` more tokens if it is the target's, and as much less as there are fewer weights in it.
    """
    record = source_record(source)
    share = 0.0
    if record.engine_option == "draft_layers":
        layers = llm.model.config.num_layers
        share = (llm.config.draft_layers or max(1, layers // 3)) / layers
    elif record.max_draft_models:
        share = sum(draft.weight_bytes for draft in llm.draft_models) / max(1, llm.memory_plan.target_weights)
    return max(1.0, share * PASS_TOKENS)
