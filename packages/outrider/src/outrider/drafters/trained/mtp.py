"""The head that the model's own files bring goes on from its hidden states (docs/algorithms/mtp.md)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.trained.level_drafter import LevelDrafter
from outrider.drafters.trained.mtp_vocabulary import DraftTokens
from outrider.drafters.trained.native_mtp import NativeMtp
from outrider.extensions import extension
from outrider.models.native_llama import NativeLlamaModel
from outrider.verify.draft import Draft
from outrider.verify.shapes import Acceptance


def build(context: DrafterContext) -> Drafter:
    """The source ``mtp``."""
    head = context.heads["mtp"]
    if not isinstance(context.target, NativeLlamaModel):
        made: Drafter = extension("backends", "torch", "a draft head on torch").build_mtp(context)
        return made
    target = context.target
    runner = NativeMtp(head, target, context.cache)
    tokens = DraftTokens(target, head.lowest) if head.scores_part else None
    drafter = MtpDrafter(
        runner, target.config.num_layers, tokens, vocab_size=context.vocab_size, learned=head.acceptance
    )
    drafter.keep_rows(context.sessions, target.config.hidden_size)
    return drafter


class MtpDrafter(LevelDrafter):
    """Drafts with a model's own head; of a large vocabulary it scores a part."""

    def __init__(
        self, runner: NativeMtp, num_layers: int, tokens: DraftTokens | None, *, vocab_size: int,
        learned: Acceptance = (),
    ) -> None:  # fmt: skip
        """
        Args:
            num_layers: of the target.
            tokens: those to score; None: all.
            vocab_size: logits from this column on are padding.
            learned: the head's acceptance as measured in training.
        """
        self._mtp, self._tokens = runner, tokens
        super().__init__(runner, (num_layers,), source="mtp", vocab_size=vocab_size, learned=learned)

    def start(self, request: RequestView) -> None:
        super().start(request)
        if self._tokens is not None:
            self._tokens.start(request)

    def finish(self, request_id: str) -> None:
        super().finish(request_id)
        if self._tokens is not None:
            self._tokens.finish(request_id)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """Drafts for requests all of whose tokens but the last have been read."""
        asked = [request for request, _ in self._asked(requests, budgets).values()]
        if self._tokens is not None and asked:
            self._mtp.score(self._tokens.read(asked))
            for request in asked:
                sequence = self._sequences[request.id]
                if not sequence.num_waiting and len(sequence.outputs):  # its logits may be of other tokens
                    sequence.logits = self._mtp.logits(sequence.outputs[:1])
        return super().propose(requests, budgets)
