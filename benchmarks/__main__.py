"""`python -m benchmarks [NAME …] [--quick | --full] [--output FOLDER]`: runs the given benchmarks or all.

Prints one table per benchmark, writes the ratios as a plot and all figures as JSON.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.measuring import Figure, table_of
from benchmarks.plots import plot_ratios
from benchmarks.scale import Scale

BENCHMARKS = (
    "parity",
    "step_overhead",
    "movielens",
    "table",
    "pooled",
    "tables",
    "dlrm",
    "lookups",
    "techniques",
    "sweeps",
    "exchange",
    "transfers",
    "ranks",
    "links",
    "two_levels",
    "saving",
    "snapshots",
    "blame",
    "rocksdb",
    "joining",
    "live_latency",
    "redis",
    "cache_refresh",
    "serving",
    "serving_native",
    "native_client",
    "native_refresh",
    "serving_processes",
    "tiers",
    "serving_lookup",
    "top_k",
    "all_users",
    "reading",
    "lakes",
    "exported_program",
    "serving_start",
    "serving_refresh",
    "pushes",
    "follower_pushes",
    "service_training",
    "tensorflow_adapter",
    "jax_dlrm",
)
_OF_ONE_SIZE = {
    "parity",
    "step_overhead",
    "movielens",
    "table",
    "links",
    "two_levels",
    "tensorflow_adapter",
}
QUICK = tuple(name for name in BENCHMARKS if name not in _OF_ONE_SIZE)
"""Benchmarks with reduced sizes in a quick run."""


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a limit was missed, 2 for an unknown name."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to test the programs")
    parser.add_argument("--full", action="store_true", help="include the largest sweeps")
    parser.add_argument("--output", type=Path, default=Path("benchmark-results"))
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(BENCHMARKS))
    if unknown:
        print(
            f"unknown benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    scale = Scale(is_quick=given.quick, is_full=given.full)
    console = Console(width=160) if not sys.stdout.isatty() else Console()
    console.print(
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    results: dict[str, list[Figure]] = {}
    failed: list[str] = []
    for name in given.names or (QUICK if given.quick else BENCHMARKS):
        try:
            results[name] = importlib.import_module(f"benchmarks.{name}").measure(scale)
        except Exception:
            # Continues, because the others may take minutes and their results should not be lost.
            console.print_exception()
            failed.append(name)
            continue
        console.print(table_of(name, results[name]))
    given.output.mkdir(parents=True, exist_ok=True)
    figures = {name: [asdict(each) for each in some] for name, some in results.items()}
    (given.output / "figures.json").write_text(json.dumps(figures, indent=1) + "\n")
    plot = plot_ratios(results, given.output / "ratios.png")
    console.print(f"written: {given.output / 'figures.json'}" + (f", {plot}" if plot else ""))
    if failed:
        console.print(f"FAILED: {', '.join(failed)}")
        return 1
    missed = sum(each.is_reached is False for some in results.values() for each in some)
    return 1 if missed and not given.quick else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
