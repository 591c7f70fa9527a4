"""``python -m benchmarks.gpu [NAME …] [--output FILE]``: measures tables on the GPU of this machine.

Prints each figure with its limit, the bandwidth of a plain copy on the same GPU in the same run, and the
time per kernel. Without a GPU it prints the reason and measures nothing. ``--device emulated`` only
tests whether the programs run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from benchmarks.measuring import Figure, table_of
from sparring_hkv.devices import why_cuda_is_unavailable

PROGRAMS = ("tables", "operations", "training", "two_tiers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 1 if a limit was missed or a program failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--device", choices=("cuda", "emulated"), default="cuda")
    parser.add_argument("--output", type=Path, help="also write the figures as JSON to this file")
    asked = parser.parse_args(arguments)
    unknown = sorted(set(asked.names) - set(PROGRAMS))
    if unknown:
        parser.error(f"unknown program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    names = asked.names or PROGRAMS
    reason = why_cuda_is_unavailable() if asked.device == "cuda" else None
    if reason is not None:
        print(reason if reason.startswith("no GPU") else f"no GPU: {reason}")
        print(f"not measured: {', '.join(names)}")
        return 0
    return _run(asked.device, names, asked.output)


def _run(device: str, names: Sequence[str], output: Path | None) -> int:
    from benchmarks.gpu.machine import Machine

    machine = Machine(device)
    console = Console(width=180) if not sys.stdout.isatty() else Console()
    console.print(f"GPU: {machine.name}")
    results: dict[str, list[Figure]] = {}
    failed = []
    for name in ("machine", *names):
        try:
            results[name] = importlib.import_module(f"benchmarks.gpu.{name}").measure(machine)
        except Exception:
            # GPU time is expensive, so the other programs run anyway.
            console.print_exception()
            failed.append(name)
            continue
        console.print(table_of(name, results[name]))
    if output is not None:
        figures = {name: [asdict(each) for each in some] for name, some in results.items()}
        output.write_text(json.dumps({"gpu": machine.name, "figures": figures}, indent=1) + "\n")
    if failed:
        console.print(f"FAILED: {escape(', '.join(failed))}")
    is_missed = any(each.is_reached is False for some in results.values() for each in some)
    return 1 if failed or is_missed else 0


if __name__ == "__main__":
    sys.exit(main())
