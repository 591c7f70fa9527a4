"""Lookups of an exported program, compared with calls of the serving snapshot reader, on one thread.

The operators are called through torch's dispatcher and as TensorFlow ops, for each framework that is
installed, with a handle, as a program calls them. The reader of sparring-packed is called in this
process. Both allocate an array for the result. The minimum times are compared, because allocating new
memory costs more than a lookup and happens at random.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
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
    """Measures the ratios of times, without and with pooling."""
    import sparring_packed

    installed = {
        name: calls
        for name, calls in (("torch", _torch_calls), ("tensorflow", _tensorflow_calls))
        if importlib.util.find_spec(name) is not None
    }
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
        for framework, calls_of in installed.items():
            library, calls = calls_of()
            digest, _ = library.describe(str(served))
            handle = f"exact:{digest}:benchmark"
            (bundle / "binding.txt").write_text(f"{handle}\n{DIM} item\n")
            library.bind(bundle, str(served))
            with sparring_packed.open(str(served)) as tables:
                for batch in BATCHES:
                    ids = generator.choice(keys, min(batch, len(keys)))
                    ids = ids[: len(ids) // BAG * BAG]
                    figures += _measure(framework, calls(handle, ids), tables, ids, scale)
            library.release(bundle)
    return figures


Calls = tuple[Callable[[], Any], Callable[[], Any]]
"""Two functions: a lookup, and a lookup with pooling."""


def _torch_calls() -> tuple[Any, Callable[[str, Any], Calls]]:
    import torch

    from sparring_torch.program.library import load_library

    library, operators = load_library(), torch.ops.sparring_program
    torch.set_num_threads(1)

    def calls(handle: str, ids: Any) -> Calls:
        tensor, offsets = torch.from_numpy(ids), torch.arange(0, len(ids), BAG)
        num_bags = len(offsets)
        return (
            lambda: operators.lookup(handle, "item", DIM, False, 0, tensor),
            lambda: operators.pooled_lookup(
                handle, "item", [DIM], [0], False, 0, 1, tensor, offsets, None, [0], num_bags
            ),
        )

    return library, calls


def _tensorflow_calls() -> tuple[Any, Callable[[str, Any], Calls]]:
    import tensorflow as tf

    from sparring_tf.program.library import load_operators, load_reader

    tf.config.threading.set_intra_op_parallelism_threads(1)
    library, (ops, _) = load_reader(), load_operators()

    def calls(handle: str, ids: Any) -> Calls:
        tensor, anchor, weights = tf.constant(ids), tf.zeros([0, DIM]), tf.zeros([0])
        lengths = tf.fill([1, len(ids) // BAG], tf.constant(BAG, tf.int64))
        where = {"handle": handle, "tables": "item"}
        return (
            lambda: ops.sparring_program_gather(ids=tensor, anchor=anchor, **where),
            lambda: ops.sparring_program_pool(
                ids=tensor, lengths=lengths, weights=weights, anchors=[anchor], **where
            ),
        )

    return library, calls


def _measure(framework: str, calls: Calls, tables: Any, ids: Any, scale: Scale) -> list[Figure]:
    ends, found = np.arange(0, len(ids) + 1, BAG), []
    lookup, pooled = calls
    for what, ours, bare in (
        ("rows", lookup, lambda: tables.lookup("item", ids)),
        (f"sums of bags of {BAG}", pooled, lambda: tables.pool("item", ids, ends)),
    ):
        if not np.array_equal(ours().numpy(), bare()):
            raise AssertionError("the operator and the reader return different rows")
        timings = alternate({"ours": ours, "bare": bare}, rounds=scale.rounds(ROUNDS))
        # The minimum of all rounds, because it is random which of the two gets mapped memory.
        ratio = min(timings["ours"].seconds) / min(timings["bare"].seconds)
        shown = ", ".join(
            f"{name} {min(each.seconds) * 1e6:.0f} us" for name, each in timings.items()
        )
        found.append(
            Figure(
                f"{framework}, {len(ids):,} ids x {DIM}, {what}: program compared with the reader",
                f"{ratio:.2f} x", f"<= {BAR}", ratio <= BAR, shown, ratio,
            )
        )  # fmt: skip
    return found
