"""A separate process for `ShardingKindTests`: reads a factory and requests, prints digests of layouts."""

from __future__ import annotations

import pickle
import sys

__all__ = ["main"]


def main() -> None:
    # Unpickling is safe here: the data come from the parent process.
    factory, requests = pickle.load(sys.stdin.buffer)
    print([factory(each).digest for each in requests])


if __name__ == "__main__":
    main()
