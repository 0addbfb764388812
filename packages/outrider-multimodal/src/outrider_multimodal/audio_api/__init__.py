"""Sound to text, a dialect of the server: ``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""
