"""Division of a window's text into timed segments, and the beginning of the next window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider_multimodal.speech.audio import FRAMES_PER_SECOND
from outrider_multimodal.speech.vocabulary import SECONDS_PER_STAMP, SpeechVocabulary

_FRAMES_PER_STAMP = round(SECONDS_PER_STAMP * FRAMES_PER_SECOND)


@dataclass(frozen=True)
class SpeechPiece:
    """Tokens of one segment, and its times within the window in seconds."""

    start: float
    end: float
    tokens: tuple[int, ...]


def cut(tokens: Sequence[int], vocabulary: SpeechVocabulary, frames: int) -> tuple[list[SpeechPiece], int]:
    """Segments of a window of ``frames``, and the frames from its beginning to the next window's (at least 1).

    ::

        <0.00> a b <2.40> <2.40> c <5.00> <5.00> d e      a pair ends each segment; the text after the last pair was
        [   segment     ] [  segment    ] next window      cut off by the window's end, and is decoded again
    """
    stamped = [token >= vocabulary.first_stamp for token in tokens]
    ends = [i for i in range(1, len(tokens)) if stamped[i] and stamped[i - 1]]
    whole = len(tokens) > 1 and stamped[-1] and not stamped[-2]  # the window ends with a segment's end, then silence
    if not ends:
        times = [token for token, stamp in zip(tokens, stamped, strict=True) if stamp]
        end = frames / FRAMES_PER_SECOND
        if times and times[-1] != vocabulary.first_stamp:
            end = vocabulary.seconds(times[-1])
        return [SpeechPiece(0.0, end, tuple(tokens))], frames
    pieces, last = [], 0
    for at in [*ends, len(tokens)] if whole else ends:
        own = tuple(tokens[last:at])
        pieces.append(SpeechPiece(vocabulary.seconds(own[0]), vocabulary.seconds(own[-1]), own))
        last = at
    if whole:
        return pieces, frames
    further = (tokens[last - 1] - vocabulary.first_stamp) * _FRAMES_PER_STAMP
    return pieces, max(1, min(further, frames)) if further else frames
