"""Lookups of dynamic ids, compared with TFRA's CuckooHashTable, which runs in a separate process."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measuring import Figure, Timing, ratios
from benchmarks.scale import Scale
from sparring import open_storage
from sparring.contracts import TableConfig
from sparring.runtime import pool as execution

__all__ = ["measure"]

DIM, NUM_ROWS, NUM_KEYS, THREADS, BAR = 64, 1_000_000, 8_192, 2, 5.0
NUM_BATCHES, ROUNDS = 24, 200
PYTHON_VARIABLE = "SPARRING_BENCHMARK_TFRA_PYTHON"


def measure(scale: Scale) -> list[Figure]:
    """Alternates lookups of both; each measures its own time."""
    what = f"lookup of {NUM_KEYS:,} dynamic ids in {NUM_ROWS:,} x {DIM}"
    python = os.environ.get(PYTHON_VARIABLE)
    if python is None:
        reason = f"set {PYTHON_VARIABLE} to a Python with TFRA"
        return [Figure(what, "not measured", bar=f">= {BAR:g} x", detail=reason)]
    random = np.random.default_rng(0)
    num_rows, num_keys = scale.rows(NUM_ROWS), scale.rows(NUM_KEYS)
    keys = np.unique(random.integers(-(2**62), 2**62, num_rows))
    rows = random.standard_normal((len(keys), DIM), np.float32)
    batches = np.stack([keys[random.permutation(len(keys))[:num_keys]] for _ in range(NUM_BATCHES)])
    storage = open_storage("hkv", TableConfig("t", DIM), validate=False)
    storage.upsert(keys, rows)
    execution.configure_pool(THREADS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, array in (("keys", keys), ("rows", rows), ("batches", batches)):
            np.save(folder / f"{file}.npy", array)
        script = Path(__file__).parent / "peers/tfra_process.py"
        with subprocess.Popen(
            [python, str(script), name, str(THREADS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as peer:
            assert peer.stdin is not None
            assert peer.stdout is not None

            def ask(line: str) -> str:
                assert peer.stdin is not None
                assert peer.stdout is not None
                peer.stdin.write(line + "\n")
                peer.stdin.flush()
                answer = peer.stdout.readline().strip()
                if not answer:
                    raise RuntimeError(f"the process of TFRA ended with {peer.wait()}")
                return answer

            # Its imports print messages.
            while (line := peer.stdout.readline()) != "ready\n":
                if not line:
                    raise RuntimeError(f"the process of TFRA failed to start: {peer.wait()}")
            ask("rows 0")
            if not np.array_equal(np.load(folder / "found.npy"), storage.find(batches[0]).rows):
                raise AssertionError("the rows of TFRA differ from ours")
            ours, theirs = Timing(), Timing()
            for turn in range(scale.rounds(ROUNDS)):
                theirs.seconds.append(float(ask(f"time {turn}")))
                start = time.perf_counter()
                storage.find(batches[turn % NUM_BATCHES])
                ours.seconds.append(time.perf_counter() - start)
            peer.stdin.close()
    storage.close()
    found = ratios(theirs, ours)
    return [
        Figure(
            what=what,
            value=f"{median(found):.2f} x TFRA CuckooHashTable",
            bar=f">= {BAR:g} x",
            is_reached=median(found) >= BAR,
            detail=(
                f"{num_keys / ours.median / 1e6:.1f} against "
                f"{num_keys / theirs.median / 1e6:.1f} M ids/s, {THREADS} threads each"
            ),
            ratio=median(found),
        )
    ]
