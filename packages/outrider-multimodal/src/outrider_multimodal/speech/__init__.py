"""From a sound file to text with times: decoding of audio, Whisper's windows and its rules of time stamps.

Nothing here runs a model. ``transcribe.transcription`` says what is to be decoded next, and is told what came of it
(``llm`` and ``server`` do the decoding, with an engine of their own kind).
"""

from outrider_multimodal.speech.audio import Sound, read_sound
from outrider_multimodal.speech.options import TranscriptionOptions
from outrider_multimodal.speech.transcribe import Decode, Decoded, transcription
from outrider_multimodal.speech.transcript import Segment, Transcript
from outrider_multimodal.speech.vocabulary import SpeechVocabulary

__all__ = [
    "Decode",
    "Decoded",
    "Segment",
    "Sound",
    "SpeechVocabulary",
    "Transcript",
    "TranscriptionOptions",
    "read_sound",
    "transcription",
]
