"""Records of this distribution's draft sources. Their drafters are imported at first use."""

from __future__ import annotations

from outrider.config.sources import DraftSource

MEDUSA = DraftSource(
    name="medusa",
    summary="heads on the target's last hidden state",
    builder="outrider_torch.drafters.medusa:build_medusa",
    head_kinds=("medusa",),
    beams=None,
    page="medusa",
)
BLOCKWISE = DraftSource(
    name="blockwise",
    summary="as medusa, with heads of another form",
    builder="outrider_torch.drafters.medusa:build_blockwise",
    head_kinds=("blockwise",),
    beams=None,
    page="blockwise",
)
PASS = DraftSource(
    name="pass",
    summary="the target itself, at look-ahead embeddings",
    builder="outrider_torch.drafters.pass_:build",
    head_kinds=("pass",),
    runs_target=True,
    cache="the target's",
    beams=None,
    page="pass",
)
