"""Plans of sparring and of TorchRec 1.8.0 with TorchRec's costs: steps, seconds, gaps.

``python -m benchmarks.planning_torchrec [--large] [NAME …]`` runs the cases of `planning_cases`, or those
whose names start with a NAME. TorchRec's enumerator creates the options, its estimator their costs, and
its rater rates both plans. Both may use the GPU memory that TorchRec's default reservation leaves. The
table contains the times of the searches, and separately of the enumeration, which both need. Returns 1 if
a plan of ours is worse.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import warnings
from statistics import median

from benchmarks.peers.torchrec_planner import Problem
from benchmarks.planning_cases import cases, large_cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="cases of many minutes")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.filterwarnings("ignore")
    print(
        "case | enumeration s | TorchRec s | ours s | times as fast | TorchRec ms | ours ms | "
        "TorchRec slower by | our gap"
    )
    slower, synthetic, faster, worse = [], [], [], 0
    for case in large_cases() if arguments.large else cases():
        if arguments.names and not case.name.startswith(tuple(arguments.names)):
            continue
        problem = Problem(case)
        ours = problem.ours()
        theirs = problem.theirs(case.limit)
        by = theirs.milliseconds / ours.milliseconds - 1
        worse += by < -1e-9
        slower.append(by)
        faster.append(theirs.seconds / ours.seconds)
        if case.is_synthetic:
            synthetic.append(by)
        print(
            f"{case.name} | {problem.enumerating:.1f} | {theirs.seconds:.2f} | {ours.seconds:.2f} | "
            f"{faster[-1]:.0f} | {theirs.milliseconds:.3f} | {ours.milliseconds:.3f} | {by:.1%} | "
            f"{ours.gap:.2%}",
            flush=True,
        )
        del problem
        gc.collect()
    if slower:
        print(
            f"{len(slower)} cases, {worse} worse; TorchRec's step is longer by a median of "
            f"{median(slower):.1%}; {len(synthetic)} synthetic ones by "
            + (f"{median(synthetic):.1%}" if synthetic else "-")
            + f"; our search is {median(faster):.0f} times as fast by median"
        )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
