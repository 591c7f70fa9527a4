"""Reliability: things are broken for real, many times over, and what came of it is counted.

`python -m reliability [NAME …] [--trials N]` runs some trials, or all; `nox -s reliability` does it
in an environment of its own. Each name is a module of this folder with

    TRIALS: int                        how many trials a whole run takes
    def run(trials: int) -> Report     breaks things so often, and counts

`__main__` finds modules by these two names, so a new file is all that a new kind of trial needs. A
module that cannot run here (no server installed, no permission to mount) returns a `Report` whose
`skipped` says why. `Report.failures` lists what must not happen, one line each with what it takes to
see it again (a seed, a fault point); a run with any failure exits with 1.
"""

from reliability.report import Report

__all__ = ["Report"]
