"""Find and upsert of a table on a GPU, a million random keys a call, float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.gpu.timing import GpuFigure, copy_bandwidth, seconds_of
from sparring.table import TableConfig
from sparring_hkv import HkvOptions, HkvStorage
from sparring_hkv.device_calls import DeviceCalls

__all__ = ["measure_tables"]

_CALL_KEYS = 1 << 20
_CAPACITY = 1 << 25
_NUM_BATCHES = 8


def measure_tables() -> Iterator[GpuFigure]:
    bandwidth = copy_bandwidth()
    yield GpuFigure("copy within the GPU", bandwidth / 1e9, "GB/s", "")
    for dim, load in ((64, 0.5), (64, 0.75), (64, 1.0), (8, 0.75)):
        yield from _measure_loaded(dim, load, bandwidth)


def _measure_loaded(dim: int, load: float, bandwidth: float) -> Iterator[GpuFigure]:
    """`load`: of the slots that may be filled, before anything is measured."""
    options = HkvOptions(device="cuda", capacity=_CAPACITY, policy="lru")
    storage = HkvStorage(TableConfig("table", dim), options, validate=False)
    calls = DeviceCalls(storage)
    stream = torch.cuda.current_stream().cuda_stream
    rows = torch.rand(_CALL_KEYS, dim, device="cuda")
    # A full table is one that was overfilled: buckets fill unequally.
    num_keys = int(_CAPACITY * (load if load < 1 else 1.5))
    for begin in range(0, num_keys, _CALL_KEYS):
        calls.upsert(_keys(begin, begin + _CALL_KEYS), rows, stream)

    generator = torch.Generator(device="cuda").manual_seed(1)
    newest = max(0, num_keys - int(_CAPACITY * min(load, 0.9)))
    batches = [
        _spread(torch.unique(torch.randint(newest, num_keys, (_CALL_KEYS,), device="cuda",
                                           generator=generator)))
        for _ in range(_NUM_BATCHES)
    ]  # fmt: skip
    found = torch.empty(_CALL_KEYS, dtype=torch.uint8, device="cuda")
    out = torch.empty_like(rows)

    def find(turn: int) -> None:
        keys = batches[turn % _NUM_BATCHES]
        calls.find(keys, out[: len(keys)], found[: len(keys)], stream)

    def replace(turn: int) -> None:
        keys = batches[turn % _NUM_BATCHES]
        calls.upsert(keys, rows[: len(keys)], stream)

    def insert(turn: int) -> None:
        begin = num_keys + turn * _CALL_KEYS
        calls.upsert(_keys(begin, begin + _CALL_KEYS), rows, stream)

    num_found = sum(map(len, batches)) / _NUM_BATCHES
    seconds = seconds_of(find)
    moved = num_found * dim * 4 * 2 / seconds / bandwidth
    name = f"dim {dim}, load {load:.2f}"
    yield GpuFigure(f"find, {name}", num_found / seconds / 1e9, "G rows/s", f"{moved:.0%} of copy")
    yield GpuFigure(
        f"upsert of known keys, {name}", num_found / seconds_of(replace) / 1e9, "G rows/s", ""
    )
    if load == 1.0:
        rate = _CALL_KEYS / seconds_of(insert) / 1e9
        yield GpuFigure(f"upsert of new keys that evict, {name}", rate, "G rows/s", "")
    if load == 0.75:
        yield _against_dense(dim, int(_CAPACITY * load), num_found / seconds)
    storage.close()


def _against_dense(dim: int, num_rows: int, our_rate: float) -> GpuFigure:
    dense = torch.rand(num_rows, dim, device="cuda")
    out = torch.empty(_CALL_KEYS, dim, device="cuda")
    batches = [
        torch.randint(0, num_rows, (_CALL_KEYS,), device="cuda") for _ in range(_NUM_BATCHES)
    ]
    seconds = seconds_of(
        lambda turn: torch.index_select(dense, 0, batches[turn % _NUM_BATCHES], out=out)
    )
    ratio = our_rate / (_CALL_KEYS / seconds)
    return GpuFigure(f"find against torch.index_select, dim {dim}", ratio, "x", "")


def _keys(begin: int, end: int) -> torch.Tensor:
    return _spread(torch.arange(begin, end, device="cuda"))


def _spread(numbers: torch.Tensor) -> torch.Tensor:
    """Different keys for different numbers, all over the 64 bits."""
    return numbers * 0x1E3779B97F4A7C15
