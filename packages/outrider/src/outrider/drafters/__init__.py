"""Draft sources, and what is needed to write one (docs/sources.md).

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
