"""Lookups of an exported program next to bare calls of the reader of serving snapshots, on one thread.

The operators are called through torch's dispatcher, with a handle, as a program calls them. The reader's
calls are those of sparring-packed in this process. Both make an array for the result, and the least
times are compared: fresh memory costs more than a lookup, and meets either.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate
from benchmarks.scale import Scale
from sparring import StepContainer, StorageChoice, TableConfig

__all__ = ["measure"]

TABLE_ROWS, DIM, ROUNDS, BAR = 500_000, 64, 60, 1.1
BATCHES = (1_000, 65_536)
BAG = 4


def measure(scale: Scale) -> list[Figure]:
    """Ratios of times, not pooled and pooled."""
    import torch

    import sparring_packed
    from sparring_torch.program.library import load_library

    generator = np.random.default_rng(0)
    keys = generator.permutation(scale.rows(TABLE_ROWS)).astype(np.int64) * 7_919
    rows = generator.random((len(keys), DIM), np.float32)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        served, bundle = Path(folder) / "served", Path(folder) / "bundle"
        with StepContainer() as container:
            container.declare(TableConfig("item", DIM), StorageChoice("hkv"))
            for begin in range(0, len(keys), 1 << 16):
                part = slice(begin, begin + (1 << 16))
                container.assign("item", keys[part], rows[part])
            container.save(f"{folder}/saved")
        sparring_packed.write(f"{folder}/saved", str(served))
        bundle.mkdir()
        library = load_library()
        digest, _ = library.describe(str(served))
        handle = f"exact:{digest}:benchmark"
        (bundle / "binding.txt").write_text(f"{handle}\n{DIM} item\n")
        library.bind(bundle, str(served))
        with sparring_packed.open(str(served)) as tables:
            for batch in BATCHES:
                ids = generator.choice(keys, min(batch, len(keys)))
                ids = ids[: len(ids) // BAG * BAG]
                figures += _measure(torch, tables, handle, ids, scale)
        library.release(bundle)
    return figures


def _measure(torch: Any, tables: Any, handle: str, ids: Any, scale: Scale) -> list[Figure]:
    operators, found = torch.ops.sparring_program, []
    tensor = torch.from_numpy(ids)
    offsets = torch.arange(0, len(ids), BAG)
    ends = np.arange(0, len(ids) + 1, BAG)
    num_bags = len(offsets)

    def lookup() -> Any:
        return operators.lookup(handle, "item", DIM, False, 0, tensor)

    def pooled() -> Any:
        return operators.pooled_lookup(
            handle, "item", [DIM], [0], False, 0, 1, tensor, offsets, None, [0], num_bags
        )

    torch.set_num_threads(1)
    for what, ours, bare in (
        ("rows", lookup, lambda: tables.lookup("item", ids)),
        (f"sums of bags of {BAG}", pooled, lambda: tables.pool("item", ids, ends)),
    ):
        if not np.array_equal(ours().numpy(), bare()):
            raise AssertionError("the operator gives other rows than the reader")
        timings = alternate({"ours": ours, "bare": bare}, rounds=scale.rounds(ROUNDS))
        # The least of all rounds: which of the two gets memory that is mapped already is chance.
        ratio = min(timings["ours"].seconds) / min(timings["bare"].seconds)
        shown = ", ".join(
            f"{name} {min(each.seconds) * 1e6:.0f} us" for name, each in timings.items()
        )
        found.append(
            Figure(
                f"{len(ids):,} ids x {DIM}, {what}: a program's lookup against the reader",
                f"{ratio:.2f} x", f"<= {BAR}", ratio <= BAR, shown, ratio,
            )
        )  # fmt: skip
    return found
