"""``python -m sparring``, and the console script ``sparring``."""

from __future__ import annotations

import sys

from sparring.cli.application import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
