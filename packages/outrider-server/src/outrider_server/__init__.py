"""The HTTP server: OpenAI's API for one engine. Read ``app.py``, ``openai/chat.py`` and ``generation.py`` first."""
