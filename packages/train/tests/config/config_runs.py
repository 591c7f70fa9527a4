"""Small runs of `sparring train` that differ by one key of a configuration, and all its keys."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel

from sparring.collective.local import LocalCollective, LocalGroup
from sparring.contracts.descriptors import (
    CollectiveDescriptor,
    FrameworkDescriptor,
    RendezvousDescriptor,
)
from sparring.contracts.hookspecs import hookimpl
from sparring.contracts.options import Options
from sparring.contracts.ranks.collective import Collective, Work
from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.settings import get_fields
from sparring.plugins.distributions import PluginSource
from sparring.plugins.registry import make_plugin_manager
from sparring.runtime import pool as execution
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.reader import Snapshot
from sparring.snapshot.retention import latest_snapshot
from sparring_cli import find_shape
from sparring_testing.fixtures.runs import write_ratings
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_train.config.reading.loader import parse_config
from sparring_train.config.run import RunConfig
from sparring_train.config.run_type import run_type
from sparring_train.hookspecs import TrainerDescriptor
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.result import SilentProgress, TrainResult

from ..data.stream.lines import LinesPlugin
from ..data.visits import VisitsPlugin

__all__ = [
    "CLICKS",
    "RATINGS",
    "SHOWN",
    "VISITS",
    "Ran",
    "Runs",
    "all_keys",
    "made_runs",
    "shows",
]

RATINGS = """
seed: 3
threads: 1
data: {kind: table, path: ratings.csv, batch_size: 16, label: rating, categorical: [user, item],
  required: [user, item], split: {exact_fraction: 0.1}}
model: {kind: matrix_factorization, dim: 3}
storage: {backend: memory}
"""
"""60 ratings of 10 users and 12 items; 54 of them make 4 steps. Of `others.csv` there are 30, and in
`once.csv` each of 240 users and items comes once."""

CLICKS = """
seed: 3
threads: 1
data: {kind: synthetic_criteo, samples: 96, test_samples: 64, batch_size: 32, max_ids: 40}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [3], top_mlp: [3]}
storage: {backend: memory}
"""


VISITS = """
seed: 3
threads: 1
data: {kind: visits}
model: {kind: two_towers, embedding_dim: 4}
storage: {backend: memory}
"""
"""See `VisitsData`."""


@dataclass
class Ran(SilentProgress):
    """Output and results of a run."""

    result: TrainResult | None = None
    losses: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    evaluate_model: list[int] = field(default_factory=list)
    validated: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    threads: set[tuple[int, int]] = field(default_factory=set)
    """Of sparring's pool and of torch."""

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self.losses.append(loss)
        self.samples.append(samples)
        self.threads.add((execution.num_threads(), torch.get_num_threads()))

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        (self.evaluate_model if part == "test" else self.validated).append(step)

    def on_message(self, message: str) -> None:
        self.messages.append(message)

    @property
    def end(self) -> TrainResult:
        assert self.result is not None
        return self.result

    @property
    def rows(self) -> Mapping[str, int]:
        return self.end.rows


class GroupOptions(Options):
    """Options of the collective `threads`."""

    group: str = "one"


class PlaceOptions(Options):
    """Options of the rendezvous `threads`."""

    rank: int = 0
    world_size: int = 1


class CountingCollective(LocalCollective):
    """Counts the messages for which this rank waits at a time."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        super().__init__(group, rank)
        self._awaited: list[Work] = []
        self.most_awaited = 0

    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Work:
        self._awaited = [each for each in self._awaited if not each.done()]
        self._awaited.append(super()._receive_impl(buffer, source, tag))
        self.most_awaited = max(self.most_awaited, len(self._awaited))
        return self._awaited[-1]


class Parts:
    """A plugin: ranks that are threads of this process, and a framework that trains nothing."""

    def __init__(self) -> None:
        self.groups: dict[str, LocalGroup] = {}
        self.joined: list[CountingCollective] = []

    @hookimpl
    def sparring_register_rendezvous(self) -> list[RendezvousDescriptor]:
        return [
            RendezvousDescriptor(
                name="threads", api_version=(1, 0), options=PlaceOptions, factory=_Meeting
            )
        ]

    @hookimpl
    def sparring_register_collective(self) -> list[CollectiveDescriptor]:
        return [
            CollectiveDescriptor(
                name="threads", api_version=(1, 0), options=GroupOptions, factory=self._join
            )
        ]

    @hookimpl
    def sparring_register_framework(self) -> list[FrameworkDescriptor]:
        return [FrameworkDescriptor(name="idle", api_version=(1, 0), module="idle")]

    @hookimpl(optionalhook=True)
    def sparring_register_trainers(self) -> list[TrainerDescriptor]:
        nothing = TrainResult(metrics={}, rows={}, steps=0, seconds=0)
        return [TrainerDescriptor(name="idle", api_version=(1, 0), train=lambda *_: nothing)]

    def _join(
        self, membership: Membership, options: GroupOptions, deadline_seconds: float
    ) -> Collective:
        made = LocalGroup(membership.world_size, deadline_seconds=deadline_seconds)
        group = self.groups.setdefault(options.group, made)
        self.joined.append(CountingCollective(group, membership.rank))
        return self.joined[-1]


class _Meeting(ThreadRendezvous):
    def __init__(self, options: PlaceOptions) -> None:
        super().__init__(options.world_size)
        self._membership = Membership(options.rank, options.world_size)

    def membership(self) -> Membership:
        return self._membership


class Runs:
    """Runs in a folder, which is the current one; each run is executed only once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = Parts()
        self.manager = make_plugin_manager()
        self.manager.load(PluginSource("effects", "sparring-effects", "1", lambda: self.parts))
        self.manager.load(PluginSource("visits", "sparring-visits", "1", VisitsPlugin))
        self.manager.load(PluginSource("lines", "sparring-lines", "1", LinesPlugin))
        self._made: dict[tuple[str, ...], list[Ran]] = {}
        random = np.random.default_rng(5)
        self._write("ratings.csv", random.integers(0, 10, 60), random.integers(0, 12, 60))
        self._write("others.csv", random.integers(0, 10, 30), random.integers(0, 12, 30))
        self._write("once.csv", np.arange(240), np.arange(240))

    def _write(self, name: str, users: npt.NDArray[Any], items: npt.NDArray[Any]) -> None:
        write_ratings(self.folder / name, users, items, users % 5 + 0.5)

    def ratings(self, *overrides: str) -> Ran:
        """A run over ratings by one process."""
        return self._run(RATINGS, overrides)[0]

    def clicks(self, *overrides: str) -> Ran:
        """A run over clicks by one process."""
        return self._run(CLICKS, overrides)[0]

    def visits(self, *overrides: str) -> Ran:
        """A run over visits by one process."""
        return self._run(VISITS, overrides)[0]

    def ranks(self, *overrides: str, text: str = RATINGS, world_size: int = 2) -> list[Ran]:
        """A run by ranks, which are threads."""
        return self._run(text, ("collective.backend=threads", *overrides), world_size)

    def _run(self, text: str, overrides: tuple[str, ...], world_size: int = 1) -> list[Ran]:
        key = (text, str(world_size), *overrides)
        if key not in self._made:
            places = [
                f"rendezvous={{backend: threads, options: {{rank: {rank}, world_size: {world_size}}}}}"
                for rank in range(world_size)
            ]
            given = [[*overrides, *([place] if world_size > 1 else [])] for place in places]
            self.parts.groups.clear()
            self.parts.joined.clear()
            with ThreadPoolExecutor(world_size) as threads:
                self._made[key] = list(
                    threads.map(lambda each: self.train(self.config(text, *each)), given)
                )
        return self._made[key]

    def config(self, text: str, *overrides: str) -> RunConfig:
        """Reads a configuration like `sparring train`."""
        return parse_config(text, overrides, plugin_manager=self.manager)

    def train(self, config: RunConfig) -> Ran:
        """Runs a configuration like `sparring train`."""
        ran = Ran()
        ran.result = find_trainer(config.framework, self.manager).train(config, self.manager, ran)
        return ran

    def snapshot(self, folder: str) -> Snapshot:
        """Returns the newest snapshot in a folder."""
        found = latest_snapshot(folder)
        assert found is not None
        return found

    def first_values(self, *overrides: str) -> dict[str, npt.NDArray[Any]]:
        """Returns the embeddings of each table before a step has changed them."""
        folder = f"values{len(self._made)}"
        steps = "optimizer.sparse={name: sgd, lr: 1.0e-60}"
        self.ratings(f"snapshots.url={folder}", "model.dim=31", steps, *overrides)
        found = self.snapshot(folder)
        return {
            name: np.concatenate([chunk.rows[:, : table.dim] for chunk in scan_rows(found, name)])
            for name, table in found.tables.items()
        }

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Returns the contents of a file of JSON lines."""
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def spans(self, name: str) -> list[str]:
        """Returns the names of spans in a trace."""
        events = json.loads((self.folder / name).read_text())["traceEvents"]
        return [event["name"] for event in events]


def made_runs(folder: Path) -> Iterator[Runs]:
    """For a fixture: runs in `folder`, which is the current folder during the test."""
    before = Path.cwd()
    os.chdir(folder)
    yield Runs(folder)
    os.chdir(before)


Test = TypeVar("Test", bound=Callable[..., None])

SHOWN: dict[str, str] = {}
"""Key, as `all_keys` writes it → the test that shows its effect."""


def shows(*keys: str) -> Callable[[Test], Test]:
    """Records that a test shows the effects of `keys` on `sparring train`."""
    assert not SHOWN.keys() & set(keys)

    def record(test: Test) -> Test:
        SHOWN.update(dict.fromkeys(keys, test.__name__))
        return test

    return record


def all_keys() -> list[str]:
    """Returns every key of a configuration, once for each model that has it.

    ``data:table.path`` is a key of the section of that kind, ``optimizer.sparse.*`` any key that
    the section passes on.
    """
    return list(_keys_below("", run_type(), {run_type()}))


def _keys_below(prefix: str, model: type[Any], known: set[type[Any]]) -> Iterator[str]:
    for name, each in get_fields(model).items():
        yield from _keys_at(f"{prefix}{name}", each.annotation, known)
    if issubclass(model, BaseModel) and model.model_config.get("extra") == "allow":
        yield f"{prefix}*"


def _keys_at(path: str, annotation: Any, known: set[type[Any]]) -> Iterator[str]:
    shape = find_shape(annotation)
    if shape.items is not None and find_shape(shape.items).models:
        yield from _keys_at(f"{path}.<name>", shape.items, known)
        return
    new = {kind: model for kind, model in shape.models.items() if model not in known}
    known.update(new.values())
    for kind, model in new.items():
        yield from _keys_below(f"{path}:{kind}." if kind else f"{path}.", model, known)
    if not new:
        yield path
