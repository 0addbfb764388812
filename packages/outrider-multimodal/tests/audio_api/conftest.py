"""The server's fixtures: a text model that is served."""

from tests.server.conftest import folder, live

__all__ = ["folder", "live"]
