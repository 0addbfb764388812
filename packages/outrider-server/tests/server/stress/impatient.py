"""``outrider serve`` with short deadlines, for what keeps a server waiting.

python -m tests.server.stress.impatient serve -m MODEL
"""

from __future__ import annotations

from outrider.cli.main import main
from outrider_server.settings import Limits, ServerSettings

LIMITS = Limits(header_timeout=1, body_timeout=2, keep_alive_timeout=0.5, write_timeout=5)


def install() -> None:
    """Let ``LIMITS`` be the default."""
    defaults = ServerSettings.__init__.__kwdefaults__
    assert defaults is not None
    defaults["limits"] = LIMITS


if __name__ == "__main__":
    install()
    main()
