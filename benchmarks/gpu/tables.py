"""Find and upsert of a table on a GPU, with a million random keys per call, float32."""

from __future__ import annotations

import torch

from benchmarks.gpu.keys import spread
from benchmarks.gpu.machine import Bar, Machine
from benchmarks.measuring import Figure
from sparring.contracts import TableConfig
from sparring_hkv.backend import HkvStorage
from sparring_hkv.device_calls import DeviceCalls
from sparring_hkv.options import HkvOptions

__all__ = ["measure"]

_CALL_KEYS = 1 << 20
_CAPACITY = 1 << 25
_NUM_BATCHES = 8
_LOADS = (0.5, 0.75, 1.0)


def measure(machine: Machine) -> list[Figure]:
    """Measures all load factors, and the effect of the load factor."""
    figures: list[Figure] = []
    rates = {}
    for load in _LOADS:
        with _Filled(machine, 64, load) as filled:
            rates[load] = filled.find_rate
            figures += filled.finds()
            figures += filled.upserts()
            if load == 0.75:
                figures.append(filled.against_dense())
    change = max(rates.values()) / min(rates.values()) - 1
    figures.append(
        machine.figure(
            "find, dim 64: change with load", 100 * change, "%", Bar(at_most=5.0),
            "the slowest and the fastest of the three loads",
        )
    )  # fmt: skip
    with _Filled(machine, 8, 0.75) as filled:
        figures += filled.finds()
    return figures


class _Filled:
    """A table in which a fraction `load` of the usable slots is filled."""

    def __init__(self, machine: Machine, dim: int, load: float) -> None:
        self._machine = machine
        self._dim = dim
        self._load = load
        self._name = f"dim {dim}, load {load:.2f}"
        self._capacity = machine.sized(_CAPACITY)
        self._num_keys = machine.sized(_CALL_KEYS)
        options = HkvOptions(device=machine.device, capacity=self._capacity, policy="lru")
        self._storage = HkvStorage(TableConfig("table", dim), options, validate=False)
        self._calls = DeviceCalls(self._storage)
        self._rows = torch.rand(self._num_keys, dim, device=machine.where)
        # A full table must be overfilled, because buckets fill unevenly.
        self._end = int(self._capacity * (load if load < 1 else 1.5))
        for begin in range(0, self._end, self._num_keys):
            self._insert(begin, min(self._num_keys, self._end - begin))
        self._found = torch.empty(self._num_keys, dtype=torch.uint8, device=machine.where)
        self._out = torch.empty_like(self._rows)
        # Full buckets evict some of the last keys, which are excluded.
        self._batches = [keys[self._is_there(keys)] for keys in self._drawn()]
        self._check()
        self._find_seconds = machine.seconds_of(self._find)
        self._num_found = sum(map(len, self._batches)) / _NUM_BATCHES

    def __enter__(self) -> _Filled:
        return self

    def __exit__(self, *_: object) -> None:
        self._storage.close()

    @property
    def find_rate(self) -> float:
        """Returns a figure in rows per second."""
        return self._num_found / self._find_seconds

    def finds(self) -> list[Figure]:
        moved = self.find_rate * self._dim * 4 * 2 / self._machine.copy_bandwidth
        explained = self._machine.explained(self._find_seconds, self._machine.stages_of(self._find))
        if self._dim == 8:
            bar = Bar(at_least=4.0)
            return [self._rate(f"find, {self._name}", self.find_rate, bar, explained)]
        return [
            self._rate(f"find, {self._name}", self.find_rate, None, explained),
            self._machine.figure(
                f"find, {self._name} / copy", 100 * moved, "%", Bar(at_least=60.0),
                "bytes of rows read and written, compared with the copy",
            ),
        ]  # fmt: skip

    def upserts(self) -> list[Figure]:
        if self._load == 0.5:
            return []
        full = self._load == 1.0
        seconds = self._machine.seconds_of(self._replace)
        explained = self._machine.explained(seconds, self._machine.stages_of(self._replace))
        known = self._rate(
            f"upsert of known keys, {self._name}", self._num_found / seconds,
            Bar(at_least=1.0 if full else 1.5), explained,
        )  # fmt: skip
        if not full:
            return [known]
        seconds = self._machine.seconds_of(self._evict)
        explained = self._machine.explained(seconds, self._machine.stages_of(self._evict))
        rate = self._num_keys / seconds
        what = f"upsert of new keys that evict, {self._name}"
        return [known, self._rate(what, rate, Bar(at_least=1.0), explained)]

    def against_dense(self) -> Figure:
        """Gathers the same number of random rows of a dense table."""
        num_rows = self._end
        dense = torch.rand(num_rows, self._dim, device=self._machine.where)
        batches = [
            torch.randint(0, num_rows, (len(batch),), device=self._machine.where)
            for batch in self._batches
        ]

        def select(turn: int) -> None:
            chosen = batches[turn % _NUM_BATCHES]
            torch.index_select(dense, 0, chosen, out=self._out[: len(chosen)])

        ratio = self._machine.seconds_of(select) / self._find_seconds
        return self._machine.figure(
            f"find / torch.index_select, {self._name}", ratio, "x", Bar(at_least=0.8),
            "of a dense table with the same number of rows",
        )  # fmt: skip

    def _rate(self, what: str, rate: float, bar: Bar | None, detail: str) -> Figure:
        return self._machine.figure(what, rate / 1e9, "G rows/s", bar, detail)

    def _drawn(self) -> list[torch.Tensor]:
        """Yields random keys among the last inserted ones, each once per batch."""
        oldest = max(0, self._end - int(self._capacity * min(self._load, 0.9)))
        where = self._machine.where
        generator = torch.Generator(device=where).manual_seed(1)
        drawn = []
        for _ in range(_NUM_BATCHES):
            numbers = torch.randint(
                oldest, self._end, (self._num_keys,), device=where, generator=generator
            )
            numbers = torch.unique(numbers)
            order = torch.randperm(len(numbers), device=where, generator=generator)
            drawn.append(spread(numbers[order]))
        return drawn

    def _check(self) -> None:
        """Checks that written rows are found."""
        keys = self._batches[0]
        rows = torch.rand(len(keys), self._dim, device=self._machine.where)
        self._calls.upsert(keys, rows, self._machine.stream())
        out, found = torch.empty_like(rows), self._found[: len(keys)]
        self._calls.find(keys, out, found, self._machine.stream())
        if not bool(found.all()) or not torch.equal(out, rows):
            raise AssertionError(f"{self._name}: a row that was just written was not found")
        if not all(bool(self._is_there(batch).all()) for batch in self._batches):
            raise AssertionError(f"{self._name}: a key of the batches has no row")

    def _is_there(self, keys: torch.Tensor) -> torch.Tensor:
        """Returns which of these keys have rows: ``(n,)`` bool."""
        found = self._found[: len(keys)]
        self._calls.find(keys, self._out[: len(keys)], found, self._machine.stream())
        return found.bool()

    def _find(self, turn: int) -> None:
        keys = self._batches[turn % _NUM_BATCHES]
        self._calls.find(
            keys, self._out[: len(keys)], self._found[: len(keys)], self._machine.stream()
        )

    def _replace(self, turn: int) -> None:
        keys = self._batches[turn % _NUM_BATCHES]
        self._calls.upsert(keys, self._rows[: len(keys)], self._machine.stream())

    def _evict(self, _: int) -> None:
        self._insert(self._end, self._num_keys)
        self._end += self._num_keys

    def _insert(self, begin: int, count: int) -> None:
        keys = spread(torch.arange(begin, begin + count, device=self._machine.where))
        self._calls.upsert(keys, self._rows[:count], self._machine.stream())
