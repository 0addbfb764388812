"""The HTTP server: an OpenAI-compatible face for one engine. Start reading at ``app.py`` and ``service.py``."""
