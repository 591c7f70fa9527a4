"""A tenth of the rows on the GPU and all on the host, compared with all rows in pinned host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.keys import spread, zipf_ids
from benchmarks.gpu.machine import Bar, Machine
from benchmarks.measuring import Figure
from sparring.contracts import TableConfig
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["measure"]

_DIM, _NUM_IDS, _NUM_ROWS, _NUM_BATCHES = 64, 1 << 18, 10_000_000, 8
_FILL_IDS = 1 << 20
_WARM_UP = 24


def measure(machine: Machine) -> list[Figure]:
    """Measures steps of pooled lookups, Zipf 1.05 over ten million rows, dim 64."""
    num_rows, num_ids = machine.sized(_NUM_ROWS), machine.sized(_NUM_IDS)
    batches = [ids[:, None] for ids in zipf_ids(machine, _NUM_BATCHES, num_ids, num_rows)]
    row_bytes = TableConfig("rows", _DIM).row_bytes
    hot = {"device": machine.device, "capacity": max(256, num_rows // 10), "policy": "lru"}
    stack = {
        "backend": "tiered",
        "tiers": [{"backend": "hkv", "options": hot}, {"backend": "hkv"}],
        "promote": "always",
    }
    # Only the index is on the GPU: rows are read and written over the bus.
    pinned = {"backend": "hkv", "device": machine.device, "device_memory_bytes": row_bytes}
    tiered = _Contender(machine, stack, num_rows, batches)
    spilled = _Contender(machine, pinned, num_rows, batches)
    if not torch.allclose(tiered.looked_up(), spilled.looked_up(), atol=1e-5):
        raise AssertionError("two tiers and one table contain different rows")
    figures = []
    for what, pick in (("lookup", _Contender.look_up), ("training step", _Contender.train)):
        ours, theirs = (machine.seconds_of(_bound(pick, each)) for each in (tiered, spilled))
        explained = machine.explained(ours, machine.stages_of(_bound(pick, tiered)))
        figures.append(
            machine.figure(
                f"two tiers / all rows in pinned memory, {what}", theirs / ours, "x",
                Bar(at_least=3.0), explained or "10 % of the rows on the GPU, Zipf 1.05",
            )
        )  # fmt: skip
    return figures


def _bound(pick: Callable[[_Contender, int], None], each: _Contender) -> Callable[[int], None]:
    return lambda turn: pick(each, turn)


class _Contender:
    """A module with one storage, filled with all rows, with frequent rows in the first tier."""

    def __init__(
        self, machine: Machine, storage: Any, num_rows: int, batches: list[torch.Tensor]
    ) -> None:
        self._batches = batches
        self._module = EmbeddingBag(_DIM, name="rows", mode="sum", storage=storage)
        self._optimizer = Optimizer(self._module, "sgd", lr=0.01)
        for begin in range(0, num_rows, _FILL_IDS):
            end = min(begin + _FILL_IDS, num_rows)
            ids = spread(torch.arange(begin, end, device=machine.where))
            self._step(ids[:, None])
        for turn in range(_WARM_UP if machine.is_measured else 1):
            self.train(turn)

    def looked_up(self) -> torch.Tensor:
        with torch.no_grad():
            return torch.as_tensor(self._module(self._batches[0]))

    def look_up(self, turn: int) -> None:
        with torch.no_grad():
            self._module(self._batches[turn % _NUM_BATCHES])

    def train(self, turn: int) -> None:
        self._step(self._batches[turn % _NUM_BATCHES])

    def _step(self, ids: torch.Tensor) -> None:
        self._module(ids).sum().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
