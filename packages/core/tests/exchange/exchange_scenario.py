"""A training with the same result on W ranks and in one process, for any collective and rendezvous.

Every rank runs `train`. A single process passes the number of ranks to `Alone`, and then trains on the
joined batches of all of them.

The batches contain uncommon cases: ranks without samples, a table that only one rank looks up, a step
where one rank has all ids, keys at both ends of int64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.rendezvous import Rendezvous
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gather import TableUpdate
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.updates.resolve import parse_hyper, resolve_method

TABLES = (
    TableConfig("user", 4, initializer=Uniform(-1, 1), seed=1),
    TableConfig("item", 7, initializer=Uniform(-1, 1), seed=2),
    TableConfig("rare", 3, initializer=Uniform(-1, 1), seed=3),
)

_EDGES = np.array([-1, 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max])


@dataclass(frozen=True)
class Scenario:
    """Method of a training.

    Args:
        method: sgd, adagrad or adam.
        is_fused: by the update method of that name; otherwise by a function over rows.
    """

    world_size: int
    method: str = "sgd"
    is_fused: bool = True
    reduction: Reduction = Reduction.MEAN
    num_steps: int = 100
    backend: str = "memory"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of the backend."""
    exchange: ExchangeOptions = field(default_factory=lambda: ExchangeOptions(chunk_rows=8))

    def ids(self, step: int, rank: int, table: str) -> np.ndarray:
        """Returns the ids of one rank's batch."""
        random = np.random.default_rng((step, rank, len(table)))
        if table == "rare":
            # No ids at all in most steps; then on one rank only.
            has_any = step % 5 == 0 and rank == step % self.world_size
            return random.integers(0, 9, 4 if has_any else 0)
        if step % 7 == 3:
            # One rank has all samples.
            return random.integers(-30, 30, 40 if rank == step % self.world_size else 0)
        if (step + rank) % 4 == 3:
            return np.empty(0, np.int64)
        return np.concatenate([random.integers(-30, 30, 6 + rank), _EDGES[: step % 5]])


@dataclass(frozen=True)
class Shard:
    """The rows of a table on one rank."""

    keys: list[int]
    rows: dict[int, np.ndarray]


def train(
    scenario: Scenario, collective: Collective | None, rendezvous: Rendezvous | None
) -> dict[str, Shard]:
    """Trains as one rank, or, without a collective, as one process with all batches.

    Returns:
        The final rows of this rank, by table.
    """
    made = StepContainer(
        collective=collective,
        rendezvous=rendezvous,
        reduction=scenario.reduction,
        exchange=scenario.exchange,
    )
    is_alone = collective is None
    ranks = range(scenario.world_size) if is_alone else [made.collective.rank]
    method = resolve_method(scenario.method)
    hyper = parse_hyper(method, {"lr": 0.05})
    for table in TABLES:
        made.declare(table, StorageChoice(scenario.backend, dict(scenario.options)))
        state = method.initial_state(table.dim, hyper, table.computing_dtype)
        made.set_state(table.name, state, scenario.method)
    divisor = scenario.world_size if is_alone and scenario.reduction is Reduction.MEAN else 1
    optimizer = _Optimizer(scenario.method)
    counts = dict.fromkeys(made.tables, 0)
    for step in range(scenario.num_steps):
        wanted = [
            (name, np.concatenate([scenario.ids(step, rank, name) for rank in ranks]))
            for name in made.tables
        ]
        # A table at a time, or all of them at once.
        found_all = (
            made.lookup_all(wanted)
            if step % 4
            else [made.lookup(name, ids) for name, ids in wanted]
        )
        for found in found_all:
            assert found.shadow_id is not None
            repeats = np.bincount(found.inverse, minlength=len(found.keys))[:, None]
            # The gradient of sum((row - key % 3) ** 2) / 2 over the ids.
            gradient = (found.rows - (found.keys % 3)[:, None]) * repeats / divisor
            made.resources.accumulate(found.shadow_id, gradient.astype(found.rows.dtype))
        if scenario.is_fused:
            choices = {name: MethodChoice(method, hyper, counts[name] + 1) for name in made.tables}
            for name in made.apply_methods(choices):
                counts[name] += 1
        else:
            made.apply(optimizer)
    shards = {}
    for table in TABLES:
        keys, rows = [], {}
        for chunk in made.storage(table.name).scan():
            keys += chunk.keys.tolist()
            rows.update(zip(chunk.keys.tolist(), chunk.rows.copy(), strict=True))
        shards[table.name] = Shard(sorted(keys), rows)
    made.close()
    return shards


def check(shards: Sequence[Mapping[str, Shard]], alone: Mapping[str, Shard]) -> None:
    """Checks that all ranks together have the rows of the single process."""
    for table in TABLES:
        name = table.name
        keys = [key for shard in shards for key in shard[name].keys]
        assert len(keys) == len(set(keys)), f"two ranks hold one key of {name}"
        assert sorted(keys) == alone[name].keys
        for shard in shards:
            for key, row in shard[name].rows.items():
                np.testing.assert_allclose(row, alone[name].rows[key], rtol=1e-6, atol=1e-6)


class _Optimizer:
    """A method in NumPy with a step count per table, like the optimizers of frameworks."""

    def __init__(self, method: str) -> None:
        self._update: Callable[..., None] = {
            "sgd": self._sgd,
            "adagrad": self._adagrad,
            "adam": self._adam,
        }[method]
        self._steps: dict[str, int] = {}

    def __call__(self, updates: Sequence[TableUpdate]) -> None:
        for each in updates:
            step = self._steps[each.table.name] = self._steps.get(each.table.name, 0) + 1
            dim = each.table.dim
            self._update(each.rows[:, :dim], each.rows[:, dim:], each.gradients, step)

    @staticmethod
    def _sgd(rows: Any, _state: Any, gradients: Any, _step: int) -> None:
        rows -= 0.05 * gradients

    @staticmethod
    def _adagrad(rows: Any, state: Any, gradients: Any, _step: int) -> None:
        state += gradients**2
        rows -= 0.05 * gradients / (np.sqrt(state) + 1e-10)

    @staticmethod
    def _adam(rows: Any, state: Any, gradients: Any, step: int) -> None:
        dim = rows.shape[1]
        first, second = state[:, :dim], state[:, dim:]
        first += 0.1 * (gradients - first)
        second += 0.001 * (gradients**2 - second)
        root = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        rows -= 0.05 * (first / (1 - 0.9**step)) / root
