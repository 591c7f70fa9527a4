"""`python -m reliability [NAME …] [--trials N]`: runs the given trials or all, and prints the counts."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from collections.abc import Sequence
from types import ModuleType

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import reliability
from reliability.report import Report

__all__ = ["find_modules", "main"]

_MAX_SHOWN = 20


def find_modules() -> dict[str, ModuleType]:
    """Returns the modules that have `run` and `TRIALS`, sorted by name."""
    found = {}
    for each in sorted(pkgutil.iter_modules(reliability.__path__), key=lambda info: info.name):
        if each.name.startswith("_"):
            continue
        module = importlib.import_module(f"reliability.{each.name}")
        if hasattr(module, "run") and hasattr(module, "TRIALS"):
            found[each.name] = module
    return found


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a promise was violated, 2 for an unknown name."""
    modules = find_modules()
    parser = argparse.ArgumentParser(prog="python -m reliability")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(modules))
    parser.add_argument(
        "--trials", type=int, help="number of trials; the default depends on the module"
    )
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(modules))
    if unknown:
        print(f"unknown trials {unknown[0]!r}; choose from {', '.join(modules)}", file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=140)
    reports = {}
    for name in given.names or modules:
        begin = time.monotonic()
        report = modules[name].run(given.trials or modules[name].TRIALS)
        reports[name] = report
        console.print(_table(name, report, time.monotonic() - begin))
    failed = [name for name, report in reports.items() if report.failures]
    if failed:
        console.print(f"[bold red]FAILED[/]: {', '.join(failed)}")
    return 1 if failed else 0


def _table(name: str, report: Report, seconds: float) -> Table:
    table = Table("what", "count", title=f"{name}, {seconds:.0f} s", min_width=60)
    table.columns[1].justify = "right"
    if report.skipped:
        table.add_row(f"not run: {escape(report.skipped)}", "")
        return table
    table.add_row("trials", f"{report.trials:,}")
    for what, count in report.counts.items():
        table.add_row(escape(what), f"{count:,}")
    table.add_row(
        "failures", f"{len(report.failures):,}", style="red" if report.failures else "green"
    )
    for failure in report.failures[:_MAX_SHOWN]:
        table.add_row(escape(failure), "", style="red")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
