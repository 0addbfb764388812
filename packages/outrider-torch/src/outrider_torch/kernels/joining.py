"""Joins the outputs of a batch that was run in parts, on torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.models.batch import BatchPart, ForwardOutput

__all__ = ["join"]


def join(outputs: Sequence[ForwardOutput], parts: Sequence[BatchPart]) -> ForwardOutput:
    """The output of the whole batch from those of its ``parts``."""
    logit_rows = [row for part in parts for row in part.logit_rows]
    device = outputs[0].logits.device
    back = torch.tensor(logit_rows, dtype=torch.int64).argsort().to(device)
    features = None
    if outputs[0].features is not None:
        rows = torch.tensor([row for part in parts for row in part.rows]).argsort().to(device)
        features = torch.cat([out.features for out in outputs if out.features is not None])[rows]
    logits, hidden = (torch.cat(list(given)) for given in zip(*((o.logits, o.hidden) for o in outputs), strict=True))
    return ForwardOutput(logits[back], hidden[back], features)
