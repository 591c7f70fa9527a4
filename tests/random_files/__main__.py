"""Prints how the command line reads the random files of a range of seeds."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from random_files.checker import check_seed, is_passed, summary
from random_files.generator import make_file


def main() -> int:
    parser = argparse.ArgumentParser(prog="random_files", description=__doc__)
    parser.add_argument("--seeds", default="0:500", help="FIRST:END, without END itself")
    parser.add_argument(
        "--report", action="store_true", help="print each difference, not only numbers"
    )
    parser.add_argument(
        "--keep", type=Path, help="only write the files to this folder, with their truth"
    )
    given = parser.parse_args()
    first, end = map(int, given.seeds.split(":"))
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
        for seed in range(first, end):
            truth = make_file(seed, given.keep)
            print(truth.path, truth.chosen, truth.doubts, *truth.columns, sep="\n  ")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [check_seed(seed, Path(folder)) for seed in range(first, end)]
    lines = summary(outcomes)
    print(*(lines if given.report else lines[:4]), sep="\n")
    return int(not is_passed(outcomes))


if __name__ == "__main__":
    sys.exit(main())
