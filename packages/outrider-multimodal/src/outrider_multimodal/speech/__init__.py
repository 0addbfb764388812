"""From a sound file to text with times: decoding of audio, Whisper's windows and its rules of time stamps.

Nothing here runs a model. The steps of a ``Transcription`` yield each request to decode, and receive its result
(``llm`` and ``server`` decode, each with its own engine).
"""

from outrider_multimodal.speech.audio import Sound, read_sound
from outrider_multimodal.speech.options import TranscriptionOptions
from outrider_multimodal.speech.transcribe import Decode, Decoded, Transcription
from outrider_multimodal.speech.transcript import Segment, Transcript
from outrider_multimodal.speech.vocabulary import SpeechVocabulary

__all__ = [
    "Decode",
    "Decoded",
    "Segment",
    "Sound",
    "SpeechVocabulary",
    "Transcript",
    "Transcription",
    "TranscriptionOptions",
    "read_sound",
]
