"""``python -m benchmarks.gpu [--output FILE]``: measures tables on this machine's GPU.

Every figure stands beside the bandwidth of a plain copy on the same GPU, measured in the same run, and
beside the GPU's name. Without a GPU it says why, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sparring_hkv.devices import why_cuda_is_unavailable


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, help="write the figures as JSON, too")
    asked = parser.parse_args(arguments)
    reason = why_cuda_is_unavailable()
    if reason is not None:
        print(reason if reason.startswith("no GPU") else f"no GPU: {reason}")
        return 0
    from benchmarks.gpu.operations import measure_dedup
    from benchmarks.gpu.tables import measure_tables
    from benchmarks.gpu.tiers import measure_tiers
    from benchmarks.gpu.timing import gpu_name
    from benchmarks.gpu.training import measure_training

    figures = [*measure_tables(), *measure_dedup(), *measure_training(), *measure_tiers()]
    print(f"GPU: {gpu_name()}")
    for figure in figures:
        print(f"{figure.name:55} {figure.value:10.3f} {figure.unit:14} {figure.share}")
    if asked.output is not None:
        written = {"gpu": gpu_name(), "figures": [asdict(figure) for figure in figures]}
        asked.output.write_text(json.dumps(written, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
