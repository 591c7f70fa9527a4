"""Lookups of a serving snapshot, compared with FBGEMM's quantized tables, and with plain random reads.

One thread in this process, with files in the page cache. FBGEMM has dense rows that are accessed by
index; ours are found by a hash of 64-bit ids. Results are compared before anything is timed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.programs import build_program, run_program
from benchmarks.scale import Scale

__all__ = ["DIM", "measure", "write_snapshot"]

NUM_ROWS, DIM, NUM_IDS, BAG, BATCHES, ROUNDS = 2_000_000, 64, 65_536, 4, 6, 15
CHUNK = 1 << 18
PACKAGE = Path(__file__).parent.parent / "packages/packed"
# Limits, without and with pooling.
BARS = {"fp32": (1.0, 0.9), "fp16": (None, None), "int8": (0.8, 0.8), "int4": (None, 0.8)}

Run = Callable[[], object]


def measure(scale: Scale) -> list[Figure]:
    """Measures ratios of FBGEMM's time to ours per dtype, and the time of a call of the C functions."""
    if find_spec("sparring_packed") is None:
        return [Figure("serving lookups", "not measured", detail="requires sparring-packed")]
    with tempfile.TemporaryDirectory(prefix="sparring-serving-") as folder:
        return [*_against_fbgemm(Path(folder), scale), *_through_c(Path(folder), scale)]


def write_snapshot(folder: Path, count: int) -> Path:
    """Writes a snapshot of the table `item` with `count` rows; returns its folder."""
    from sparring import ScanChunk, SnapshotWriter, TableConfig, TableDescription

    rng = np.random.default_rng(0)

    def chunks() -> Iterator[ScanChunk]:
        for begin in range(0, count, CHUNK):
            keys = np.arange(begin, min(begin + CHUNK, count))
            rows = rng.standard_normal((len(keys), DIM), dtype=np.float32)
            yield ScanChunk(keys, rows, np.zeros(len(keys), np.uint64))

    writer = SnapshotWriter(str(folder / "run/step-1"), step=1)
    writer.write_table(TableDescription.of(TableConfig("item", dim=DIM)), chunks(), [])
    writer.finish()
    writer.commit()
    return folder / "run/step-1"


def _against_fbgemm(folder: Path, scale: Scale) -> Iterator[Figure]:
    try:
        import torch
        from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (  # noqa: F401
            IntNBitTableBatchedEmbeddingBagsCodegen,
        )
    except Exception as error:
        yield Figure("FBGEMM", "not measured", detail=f"{type(error).__name__}: {error}")
        return
    import sparring_packed

    torch.set_num_threads(1)
    count = scale.rows(NUM_ROWS)
    snapshot = write_snapshot(folder, count)
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, count, scale.rows(NUM_IDS) // BAG * BAG) for _ in range(BATCHES)]
    for dtype, bars in BARS.items():
        options = sparring_packed.WriteOptions(file_bytes=1 << 32, filter_rate=None)
        url = folder / dtype / "step-1"
        sparring_packed.write(snapshot, url, quantize={"item": dtype}, options=options)
        with sparring_packed.open(url) as tables:
            for is_pooled, bar in zip((False, True), bars, strict=True):
                ours = _ours(tables, batches, is_pooled)
                theirs = _theirs(tables, batches, is_pooled)
                for our, their in zip(ours, theirs, strict=True):
                    np.testing.assert_allclose(our(), np.asarray(their()), rtol=1e-5, atol=1e-5)
                timed = alternate(
                    {"ours": _turns(ours), "theirs": _turns(theirs)},
                    rounds=scale.rounds(ROUNDS * BATCHES), warm_up=BATCHES,
                )  # fmt: skip
                ratio = median(ratios(timed["theirs"], timed["ours"]))
                rate = len(batches[0]) / timed["ours"].median / 1e6
                yield Figure(
                    what=f"{dtype}, {'sums of ' + str(BAG) if is_pooled else 'not pooled'}: "
                    f"{len(batches[0]):,} uniform ids of {count:,} x {DIM}",
                    value=f"{ratio:.2f} x ({rate:.1f} M ids/s)",
                    bar=None if bar is None else f"{bar} x",
                    is_reached=None if bar is None else ratio >= bar,
                    detail="FBGEMM's IntNBit table, dense, one thread",
                    ratio=ratio,
                )
            if dtype == "fp32":
                yield _of_several_files(snapshot, folder / "cut/step-1", tables, batches)
        shutil.rmtree(url)


def _of_several_files(snapshot: Path, url: Path, tables: Any, batches: list[Any]) -> Figure:
    """Compares sums of a table with the default number of files with sums of one file."""
    import sparring_packed

    sparring_packed.write(snapshot, url)
    with sparring_packed.open(url) as cut:
        theirs, ours = _ours(tables, batches, True), _ours(cut, batches, True)
        for our, their in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(our(), their())
        timed = alternate(
            {"cut": _turns(ours), "whole": _turns(theirs)}, rounds=ROUNDS * BATCHES, warm_up=BATCHES
        )
    ratio = median(ratios(timed["whole"], timed["cut"]))
    num_files = len(list(url.glob("*.packed")))
    shutil.rmtree(url)
    return Figure(
        what=f"fp32, sums of {BAG}: cut into files as by default, {num_files}",
        value=f"{ratio:.2f} x",
        detail="one file",
        ratio=ratio,
    )


def _ours(tables: Any, batches: list[Any], is_pooled: bool) -> list[Run]:
    offsets = np.arange(0, len(batches[0]) + 1, BAG)
    if is_pooled:
        return [lambda ids=ids: tables.pool("item", ids, offsets) for ids in batches]  # type: ignore[misc]
    return [lambda ids=ids: tables.lookup("item", ids) for ids in batches]  # type: ignore[misc]


def _theirs(tables: Any, batches: list[Any], is_pooled: bool) -> list[Run]:
    """Returns FBGEMM's module with the rows that we store."""
    import torch
    from fbgemm_gpu.split_embedding_configs import SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_inference import (
        IntNBitTableBatchedEmbeddingBagsCodegen,
    )

    table = tables.tables["item"]
    kinds = {"fp32": "FP32", "fp16": "FP16", "int8": "INT8", "int4": "INT4"}
    count = table.num_rows
    module = IntNBitTableBatchedEmbeddingBagsCodegen(
        [("item", count, DIM, SparseType[kinds[table.dtype]], EmbeddingLocation.HOST)],
        pooling_mode=PoolingMode.SUM if is_pooled else PoolingMode.NONE,
        device="cpu",
        output_dtype=SparseType.FP32,
    )
    module.initialize_weights()
    stored = tables.pull({"item": np.arange(count)}, dtype="stored").rows["item"]
    if table.dtype in {"int8", "int4"}:
        # FBGEMM stores scale and bias before the elements.
        stored = np.concatenate([stored[:, -4:], stored[:, :-4]], axis=1)
    ((weights, *_),) = module.split_embedding_weights(split_scale_shifts=False)
    weights[:, : stored.shape[1]].copy_(torch.from_numpy(stored))
    step = BAG if is_pooled else 1
    offsets = torch.arange(0, len(batches[0]) + 1, step, dtype=torch.int32)
    indices = [torch.from_numpy(ids).int() for ids in batches]
    return [lambda ids=ids: module(ids, offsets) for ids in indices]  # type: ignore[misc]


def _turns(runs: list[Run]) -> Run:
    number = iter(range(1 << 60))

    def run() -> object:
        return runs[next(number) % len(runs)]()

    return run


def _through_c(folder: Path, scale: Scale) -> Iterator[Figure]:
    """Looks up 26 tables in one call of the C library; reference: as many prefetched random reads."""
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        yield Figure("calls of the C library", "not measured", detail="requires cmake and ninja")
        return
    import sparring_packed
    from sparring import ScanChunk, SnapshotWriter, TableConfig, TableDescription

    count = scale.rows(100_000)
    rows = np.random.default_rng(0).standard_normal((count, DIM), dtype=np.float32)
    writer = SnapshotWriter(str(folder / "many/step-1"), step=1)
    for table in range(26):
        chunk = ScanChunk(np.arange(count), rows, np.zeros(count, np.uint64))
        writer.write_table(TableDescription.of(TableConfig(f"t{table}", dim=DIM)), [chunk])
    writer.finish()
    writer.commit()
    options = sparring_packed.WriteOptions(filter_rate=None)
    sparring_packed.write(folder / "many/step-1", folder / "served/step-1", options=options)
    settings = ["-DSPARRING_PACKED_BENCHMARKS=ON"]
    program = build_program("reads", PACKAGE, folder / "build", settings)
    with run_program(program, scale.rows(NUM_ROWS), DIM, scale.rows(NUM_IDS)) as run:
        dense, hashed = run("")
    yield Figure(
        what="limit for fp32: only reads of dense rows, compared with a directory and records",
        value=f"{dense / hashed:.2f} x ({scale.rows(NUM_IDS) / hashed:.1f} M ids/s)",
        detail=f"{dense:.0f} µs, {hashed:.0f} µs; one word of each cache line, no sums",
        ratio=dense / hashed,
    )
    program = build_program("calls", PACKAGE, folder / "build", settings)
    with run_program(program, folder / "served", count) as run:
        for num_ids in (1, 100):
            ours, reads = run(str(num_ids))
            bar = 2 * reads + 1
            yield Figure(
                what=f"one call of the C library, 26 tables x {num_ids} ids",
                value=f"{ours:.2f} µs",
                bar=f"{bar:.2f} µs",
                is_reached=ours <= bar,
                detail=f"2 x {reads:.2f} µs, of as many prefetched random reads, + 1 µs",
            )
