"""Services whose tables learn, in this process: shards, their services, and clients without a network."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer
from sparring.contracts import MethodChoice
from sparring_serve import ParameterClient, ParametersConfig, ShardPosition, ShardReplicas
from sparring_serve.client.transport import Send
from sparring_serve.parameters.service import ParameterService
from sparring_serve.parameters.shard import ParameterShard
from sparring_serve.service import LookupService
from sparring_serve.testing import FaultyTransport

TABLES: dict[str, Any] = {
    "user": {"dim": 8, "update_method": "adam", "hyper": {"lr": 0.01}, "seed": 3},
    "item": {"dim": 4, "update_method": "adagrad", "storage": {"backend": "memory"}},
}


class Shards:
    """All shards of a service, and the addresses ``shard:0`` … at which a transport finds them."""

    def __init__(self, num_shards: int, **config: Any) -> None:
        self.config = ParametersConfig.model_validate(
            {"tables": TABLES, "start": None, "push_log_bytes": 0, **config}
        )
        self.map = ShardReplicas(tuple((f"shard:{each}",) for each in range(num_shards)))
        self.fault: Callable[[Send], str] = lambda _: ""
        self.services: dict[str, ParameterService] = {}
        for each in range(num_shards):
            self.start(each)

    def start(self, shard: int) -> ParameterService:
        position = ShardPosition(self.map, shard)
        tables = ParameterShard(self.config, position)
        lookups = LookupService(tables, position, parameters=tables.describe())
        service = self.services[f"shard:{shard}"] = ParameterService(
            tables, lookups, FaultyTransport(self.services, self._fault)
        )
        return service

    def _fault(self, send: Send) -> str:
        return self.fault(send)

    def client(self, fault: Callable[[Send], str] = lambda _: "") -> ParameterClient:
        transport = FaultyTransport(self.services, fault)
        return ParameterClient(self.map, transport=transport, clock=transport.clock)

    def rows(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        with self.client() as client:
            return dict(client.pull(dict.fromkeys(TABLES, ids)).rows)

    def close(self) -> None:
        for each in self.services.values():
            each.close()
            each.shard.close()


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default push log is in the working directory."""
    monkeypatch.chdir(tmp_path)


MakeShards = Callable[..., Shards]


@pytest.fixture
def make_shards(closing: ExitStack) -> MakeShards:
    return lambda num_shards=1, **config: closing.enter_context(
        contextlib.closing(Shards(num_shards, **config))
    )


class OneProcess:
    """The engine in one process, with the tables of the service."""

    def __init__(self) -> None:
        self.config = ParametersConfig.model_validate({"tables": TABLES})
        self.container = StepContainer()
        self._steps = dict.fromkeys(TABLES, 0)
        for name, each in self.config.tables.items():
            table, method = each.table(name), each.method
            self.container.declare(table, each.storage_choice)
            state = method.initial_state(table.dim, each.hyper_parameters, np.float32)
            self.container.set_state(name, state, method.name)

    def push(self, gradients: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> None:
        choices = {}
        for name, (ids, values) in gradients.items():
            found = self.container.lookup(name, ids)
            summed = np.zeros_like(found.rows)
            np.add.at(summed, found.inverse, values)
            self.container.resources.accumulate(found.shadow_id, summed)
            self._steps[name] += 1
            each = self.config.tables[name]
            choices[name] = MethodChoice(each.method, each.hyper_parameters, self._steps[name])
        self.container.apply_methods(choices)

    def rows(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        found = {name: self.container.lookup(name, ids, is_registered=False) for name in TABLES}
        return {name: each.rows[each.inverse] for name, each in found.items()}


@pytest.fixture
def one_process() -> Iterator[OneProcess]:
    made = OneProcess()
    yield made
    made.container.close()


def assert_same_rows(shards: Shards, expected: Mapping[str, np.ndarray]) -> None:
    for name, rows in shards.rows(IDS).items():
        assert np.array_equal(rows, expected[name]), name


def made_gradients(seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Gradients of both tables, with repeated ids."""
    random = np.random.default_rng(seed)
    return {
        name: (
            random.integers(-50, 50, 40),
            random.normal(size=(40, each["dim"])).astype(np.float32),
        )
        for name, each in TABLES.items()
    }


IDS = np.arange(-60, 60)
