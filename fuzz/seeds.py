"""Writes the seeds of a target: `python -m fuzz.seeds NAME CORPUS SERVED`.

It runs in a separate process, because a native module with sanitizers requires their libraries to be
preloaded.
`SERVED` becomes a folder of serving snapshots.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import sparring_packed
from fuzz import requests
from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig

_DTYPES = ("fp32", "fp16", "bf16", "int8", "int4")


def main(arguments: Sequence[str]) -> int:
    """Writes the seeds, each once."""
    name, corpus, served = arguments
    native = {"packed": packed_seeds, "storage": storage_seeds, "native_requests": request_seeds}
    if name in native:
        seeds = native[name]()
        with tempfile.TemporaryDirectory() as folder:
            write_served(Path(folder), Path(served))
    else:
        module, *words = name.split()
        seeds = importlib.import_module(f"fuzz.{module}").seeds(*words)
    for seed in seeds:
        Path(corpus, f"seed-{hashlib.sha1(seed).hexdigest()}").write_bytes(seed)
    return 0


def write_served(folder: Path, served: Path, dtype: str = "int8") -> None:
    """Writes a serving snapshot and a delta on it."""
    keys = np.arange(-20, 40, dtype=np.int64)
    base = None
    for step in (1, 2):
        run, last = f"{folder}/run/step-{step}", f"{folder}/run/step-{step - 1}"
        writer = SnapshotWriter(run, step=step, base=None if base is None else last)
        rows = np.random.default_rng(step).normal(size=(len(keys), 5)).astype(np.float32)
        chunk = ScanChunk(keys, rows, np.zeros(len(keys), np.uint64))
        table = TableDescription.of(TableConfig("item", 5))
        writer.write_table(table, [chunk], [] if base is None else [keys + 100])
        writer.finish()
        writer.commit()
        to = f"{served}/step-{step}"
        sparring_packed.write(run, to, quantize={"item": dtype}, base=base)
        base = to


def packed_seeds() -> Iterator[bytes]:
    """Yields manifests and files of small serving snapshots of each dtype."""
    kinds = {"manifest": (0,), "erased": (2, 18), "rows": (1, 3, 19)}
    for dtype in _DTYPES:
        with tempfile.TemporaryDirectory() as folder:
            served = Path(folder, "served")
            write_served(Path(folder), served, dtype)
            for path in sorted(served.glob("*/*")):
                content, name = path.read_bytes(), path.name.partition(".")[0]
                # The fuzzer appends the hash of a manifest.
                if name == "manifest":
                    content = content[: content.rindex(b'\n "hash": "')]
                for kind in kinds.get(name, ()):
                    for level in (0, 4, 8):
                        yield bytes([kind | level]) + content


def storage_seeds() -> Iterator[bytes]:
    """Yields programs that call each function, on tables with each policy."""
    for policy in range(6):
        for capacity in (0, 160):
            for kind in range(11):
                call = bytes([1, 8, *range(8), 1, 0, *range(12)])
                yield bytes([7, capacity, policy, 0, policy]) + call + bytes([kind]) + call[1:]


def request_seeds() -> Iterator[bytes]:
    """Yields the messages of the server in Python, as each of the methods."""
    for seed in dict.fromkeys(each[1:] for each in requests.seeds()):
        for method in range(8):
            yield bytes([method]) + seed
    yield b"\1\x0a\x04item\x1a\x10" + bytes(16) + b"\x20\x1e"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
