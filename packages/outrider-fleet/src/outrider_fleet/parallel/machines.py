"""Links between processes of several machines, where torch is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.extensions import has_extension, missing_extension
from outrider_fleet.parallel.rendezvous import Rendezvous

if TYPE_CHECKING:
    from outrider_fleet.parallel.gloo import GlooLink


def gloo_link(place: Rendezvous) -> GlooLink:
    """The link of this process. Raises MissingExtensionError without torch, whose gloo it is."""
    if not has_extension("backends", "torch"):
        raise missing_extension("backends", "torch", f"torch, which connects WORLD_SIZE={place.size} processes,")
    from outrider_fleet.parallel.gloo import GlooLink  # torch.distributed takes a while to import

    return GlooLink(place)
