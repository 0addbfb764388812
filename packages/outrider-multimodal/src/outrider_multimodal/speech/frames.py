"""Whisper's units of sound: 100 frames per second, in windows of 30 seconds."""

from __future__ import annotations

from outrider_multimodal.speech.audio import RATE

__all__ = ["FRAMES_PER_SECOND", "HOP", "WINDOW_FRAMES", "WINDOW_SECONDS"]

HOP = 160
FRAMES_PER_SECOND = RATE // HOP
WINDOW_SECONDS = 30
WINDOW_FRAMES = WINDOW_SECONDS * FRAMES_PER_SECOND
