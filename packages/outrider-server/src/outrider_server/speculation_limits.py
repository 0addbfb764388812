"""What a request may ask of speculation.

A step is over for everyone when its longest draft is; and lossy verifiers let drafts have a say in the output.
"""

from __future__ import annotations

import math

from outrider.config import SpeculationParams, source_record
from outrider.config.speculation import LOSSY_OPTIONS
from outrider.llm import LLM
from outrider.verify.shapes import levels_wanted, nodes_wanted
from outrider.verify.verifiers import VERIFIERS
from outrider_server.http.errors import invalid
from outrider_server.service import Service

PASS_TOKENS = 8  # that a pass of the target over one row takes as long as: weights are read once for all rows


def check_draft_size(service: Service, speculation: SpeculationParams) -> None:
    """Raises ApiError 400 for drafts beyond ``max_draft_tokens``, or the server's own if those are longer."""
    llm = service.engine.llm
    most = max(service.settings.max_draft_tokens, _draft_size(llm, llm.speculation))
    wanted = _draft_size(llm, speculation)
    if wanted > most:
        raise invalid(
            f"speculation asks for drafts that cost as much as {wanted} tokens, and {most} are allowed here: lower "
            "spec_length or the size of the tree, or start the server with --max-draft-tokens",
            "speculation",
        )


def _draft_size(llm: LLM, speculation: SpeculationParams) -> int:
    """Nodes of a draft, or what its levels cost if that is more, in tokens.

    A level of a length that the engine chooses is only drafted if it pays, and counts once.
    """
    depth = levels_wanted(speculation, adaptive=True)
    fixed = speculation.spec_length != "auto"
    level = max((_level_cost(llm, name) for name in speculation.combination.names if fixed), default=1.0)
    return max(math.ceil(depth * level), nodes_wanted(speculation, depth))


def _level_cost(llm: LLM, source: str) -> float:
    """What a level of a source's drafts costs, in tokens that the target scores: at least one.

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


def check_verifier(service: Service, wanted: SpeculationParams) -> None:
    """Raise ApiError for a lossy verifier that the operator neither uses nor allows.

    Under such a one the drafts have a say in the output, and drafts may come from what other texts have taught.
    """
    default = service.engine.llm.speculation
    same = all(getattr(wanted, name) == getattr(default, name) for name in ("verifier", *LOSSY_OPTIONS))
    if not same and not VERIFIERS[wanted.verifier].exact and not service.settings.allow_lossy:
        raise invalid(
            f"verifier={wanted.verifier!r} changes the output, which this server does not allow: use 'matching', or "
            "start the server with --allow-lossy",
            "speculation.verifier",
            "unsupported",
        )
