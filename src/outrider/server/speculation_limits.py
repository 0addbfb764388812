"""What a request may ask of speculation.

A step is over for everyone when its longest draft is; and lossy verifiers let drafts have a say in the output.
"""

from __future__ import annotations

from outrider.config import SpeculationParams
from outrider.config.speculation import LOSSY_OPTIONS
from outrider.core.shapes import levels_wanted, nodes_wanted
from outrider.core.verify import VERIFIERS
from outrider.server.http.errors import invalid
from outrider.server.service import Service


def check_draft_size(service: Service, speculation: SpeculationParams) -> None:
    """Raises ApiError 400 for drafts beyond ``max_draft_tokens``, or the server's own if those are longer."""
    own = service.engine.llm.speculation
    most = max(service.settings.max_draft_tokens, _draft_size(own))
    wanted = _draft_size(speculation)
    if wanted > most:
        raise invalid(
            f"speculation asks for drafts of {wanted} tokens, and {most} are allowed here: lower spec_length or the "
            "size of the tree, or start the server with --max-draft-tokens",
            "speculation",
        )


def _draft_size(speculation: SpeculationParams) -> int:
    """Nodes or levels of a draft, whichever are more: each level may be a run of a draft model."""
    depth = levels_wanted(speculation, adaptive=True)
    return max(depth, nodes_wanted(speculation, depth))


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
