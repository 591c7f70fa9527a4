"""Measures the memory of a training step of the TensorFlow adapter in a separate process.

Run with ``TF_ENABLE_ONEDNN_OPTS=0``: TensorFlow's other allocator keeps freed memory, and therefore hides
the memory of a step::

    python -m benchmarks.tensorflow_memory ROWS BATCH ROUNDS

Prints the bytes of each contender as a line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.tensorflow_adapter import contenders


def main(rows: int, batch: int, rounds: int) -> None:
    import tensorflow as tf

    generator = np.random.default_rng(0)
    batches = [tf.constant(generator.integers(0, rows, batch)) for _ in range(16)]
    made = contenders(rows, batches, generator)
    for run in made.values():
        run()
    peaks = {name: _peak_bytes(run, rounds) for name, run in made.items()}
    print(json.dumps(peaks), flush=True)


def _peak_bytes(run: Callable[[], Any], rounds: int) -> float:
    """Returns the median increase of the resident memory during a call."""
    trim = ctypes.CDLL(None).malloc_trim
    found = []
    for _ in range(rounds):
        # Memory that earlier calls freed would hide the memory of this one.
        trim(0)
        # Resets the peak of the resident memory.
        Path("/proc/self/clear_refs").write_text("5")
        before = _status_bytes("VmRSS")
        run()
        found.append(_status_bytes("VmHWM") - before)
    return median(found)


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(found) * 1024


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
