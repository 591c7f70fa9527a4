"""`python -m benchmarks [NAME …]`: runs the benchmarks named, or all, and prints one table."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from benchmarks.measuring import Figure

BENCHMARKS = ("parity", "step_overhead", "movielens", "table")


def main(names: Sequence[str]) -> int:
    """Returns 1 where a bar was not reached, 2 for an unknown name."""
    unknown = sorted(set(names) - set(BENCHMARKS))
    if unknown:
        print(
            f"unknown benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    console = Console(width=140) if not sys.stdout.isatty() else Console()
    missed = 0
    for name in names or BENCHMARKS:
        figures: list[Figure] = importlib.import_module(f"benchmarks.{name}").measure()
        table = Table("what", "figure", "to reach", "", "compared with", title=name)
        for figure in figures:
            mark = {None: "", True: "reached", False: "MISSED"}[figure.is_reached]
            table.add_row(figure.what, figure.value, figure.bar or "", mark, figure.detail)
        console.print(table)
        missed += sum(figure.is_reached is False for figure in figures)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
