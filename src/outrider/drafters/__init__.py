"""Draft sources, and what is needed to write one (docs/sources.md).

from outrider.drafters import EMPTY, Draft, Drafter, RequestView
"""

from outrider.core.draft import EMPTY, Draft, Verdict
from outrider.drafters.api import Drafter, FeatureReader, Outcome, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext

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
