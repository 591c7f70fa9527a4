"""A rank of its own for `ShardingKindTests`: reads a factory and requests, prints digests of layouts."""

from __future__ import annotations

import pickle
import sys

__all__ = ["main"]


def main() -> None:
    # From the parent process, which trusts itself.
    factory, requests = pickle.load(sys.stdin.buffer)
    print([factory(each).digest for each in requests])


if __name__ == "__main__":
    main()
