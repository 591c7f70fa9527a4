"""Reliability trials: inject real faults many times and count the outcomes.

`python -m reliability [NAME …] [--trials N]` runs the given trials or all; `nox -s reliability` does it
in a separate environment. Each name is a module of this folder with

    TRIALS: int                        default number of trials
    def run(trials: int) -> Report     breaks things so often, and counts

`__main__` finds modules by these two names, so a new kind of trial needs only a new file. A module that
cannot run here (no server installed, no permission to mount) returns a `Report` with the reason in
`skipped`. `Report.failures` contains a line for each violated promise, with the information to reproduce
it (a seed, a fault point). A run with failures exits with 1.
"""

from reliability.report import Report

__all__ = ["Report"]
