"""Draft sources, and the interface for writing one (docs/sources.md).

from outrider.drafters import EMPTY, Draft, Drafter, RequestView
"""

from outrider.drafters.api import Drafter, FeatureReader, Outcome, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.verify.draft import EMPTY, Draft, Verdict

__all__ = [
    "EMPTY",
    "Draft",
    "Drafter",
    "DrafterContext",
    "FeatureReader",
    "Outcome",
    "RequestView",
    "SingleRequestDrafter",
    "Verdict",
]
