"""``python -m sparring`` and ``torchrun -m sparring``: the command of sparring-cli."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> int:
    """Runs the command. Without sparring-cli, prints how to install it and returns 2."""
    try:
        from sparring_cli import main as run
    except ModuleNotFoundError as error:
        if error.name != "sparring_cli":
            raise
        print(
            "error: `python -m sparring` needs sparring-cli, which is not installed; run: "
            "pip install 'sparring[cli]'",
            file=sys.stderr,
        )
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
