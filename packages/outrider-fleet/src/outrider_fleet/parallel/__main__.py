"""``python -m outrider_fleet.parallel``: a process of another machine, for a model that the process of rank 0 leads."""

from __future__ import annotations

import sys

from outrider.errors import OutriderError
from outrider_fleet.parallel.follower import main_elsewhere

if __name__ == "__main__":
    try:
        main_elsewhere()
    except OutriderError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
