"""One shard of trainable tables: an engine of one rank over the partitions of the shard.

The file is long because lookups, pushes, saves and loads take turns on the same tables.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import (
    LoadResult,
    SaveOptions,
    SaveResult,
    Snapshot,
    State,
    StepContainer,
    Storage,
    list_snapshots,
    list_unreadable_snapshots,
    open_snapshot,
)
from sparring.adapter import IndependentRendezvous, Task
from sparring.contracts import HyperParameters, MethodChoice, ShardMap, partition
from sparring.errors import (
    InterruptedLoadError,
    InvalidArgumentError,
    PartialStepError,
    SnapshotDamagedError,
    SnapshotError,
    SparringError,
    UnsupportedError,
)
from sparring_serve.declaration import ParametersConfig
from sparring_serve.parameters.incarnations import new_incarnation
from sparring_serve.parameters.push_log_files import STATE, Base, find_base
from sparring_serve.parameters.push_window import PushWindows, Token, Verdict
from sparring_serve.parameters.saved_methods import read_method_steps
from sparring_serve.resizing.shard_rows import ShardRows
from sparring_serve.service import ShardPosition
from sparring_serve.status import Status, StatusError
from sparring_serve.tables.contract import (
    Ids,
    LookupResult,
    ModelPart,
    ReserveRows,
    ScanResult,
    TableShape,
    Version,
    VersionGoneError,
    describe_initial_values,
    found_rows,
)
from sparring_serve.wire.messages import (
    GateMessage,
    Missing,
    ParametersMessage,
    RowDtype,
    TableMethod,
)

__all__ = ["Gradients", "ParameterShard"]


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one table in a push."""

    table: str
    ids: Ids
    gradients: npt.NDArray[np.float32]
    """``(n, dim)``, finite unless non-finite gradients are skipped."""
    hyper: HyperParameters


class ParameterShard:
    """Tables that are read by lookups and updated by pushes. All methods are thread-safe and run one
    at a time.

    Implements `ServingTables` with a single version, which changes with each push and has no hash.

    Args:
        config: Declarations of the tables.
        position: Shard of this server.
        can_move: Whether partitions can move to and from other shards.
    """

    def __init__(
        self, config: ParametersConfig, position: ShardPosition, *, can_move: bool = False
    ) -> None:
        self.config, self.position = config, position
        self._turn = threading.Lock()
        self._steps = dict.fromkeys(config.tables, 0)
        self._steps_before = 0
        """Number of pushes that the engine does not count, because only some tables of a snapshot
        were loaded."""
        self.windows = PushWindows(config.max_clients)
        has_partitions = bool((position.shards.owners == position.shard).any())
        self.incarnation = new_incarnation(has_partitions=has_partitions)
        self.began_with = ""
        """URL of the snapshot that the server started with; empty if it started without rows."""
        self.not_fresh = ""
        self.gate = GateMessage()
        """Reason why the server did not start with the newest snapshot; empty if it did."""
        self.num_skipped = 0
        """Number of damaged snapshots that were skipped at the start."""
        self.lost = ""
        """Reason why acknowledged pushes may be missing, until a snapshot is loaded or the loss is
        accepted."""
        self.is_settled = False
        """Whether a snapshot was loaded or a loss was accepted in this incarnation."""
        self.known_at_start: dict[str, int] = {}
        """Client → its newest push that this shard had when the incarnation began."""
        self._storages: dict[str, Storage] = {}
        self._shapes: dict[str, TableShape] = {}
        self._container = self._open_tables()
        self.moved = ShardRows(self, position.shard, self._storages, self._turn, position.shards)
        self.can_move = can_move
        if can_move:
            self.moved.describe(position.shards)
        self.began_partitions: dict[Base, list[tuple[int, int]]] = {}
        """Snapshot → partitions that this shard had when its push log began to follow it."""
        self.superseded = ""
        """Newest snapshot when an older one was loaded."""
        self.followed: list[Base] = []
        """Snapshots that the push log follows, the last one at the end."""

    def _open_tables(self) -> StepContainer:
        config, position = self.config, self.position
        num_shards = max(position.shards.num_shards, position.shard + 1)
        container = StepContainer(
            rendezvous=IndependentRendezvous(position.shard, num_shards),
            non_finite_gradients=config.non_finite_gradients,
        )
        try:
            for name, each in config.tables.items():
                table, method = each.table(name), each.method
                container.declare(table, each.storage_choice)
                state = method.initial_state(
                    table.dim, each.hyper_parameters, table.computing_dtype
                )
                container.set_state(name, state, method.name)
                self._storages[name] = container.storage(name)
                self._shapes[name] = TableShape(
                    name, table.dim, table.dtype, 0, describe_initial_values(table)
                )
        except BaseException:
            container.close()
            raise
        return container

    def reset(self) -> None:
        """Discards all rows, push tokens and steps. Tables must not persist in their storages."""
        with self._turn:
            before = self._container
            self._container = self._open_tables()
            before.close()
            self._steps = dict.fromkeys(self.config.tables, 0)
            self._steps_before = 0
            self.windows.load([])

    def start(self) -> None:
        """Loads the snapshot that `parameters.start` specifies.

        Raises:
            SnapshotError: The snapshot does not exist, is damaged, or has other tables.
        """
        start, folder = self.config.start, self.config.folders[0]
        if start is None:
            return
        if self.is_outside:
            return  # it gets its rows from other shards
        if start == "newest":
            self._start_with_newest(folder)
            return
        url = start if "/" in start else f"{folder.rstrip('/')}/{start}"
        try:
            self._begin_with(url)
        except (SnapshotError, InvalidArgumentError) as error:
            raise self._start_error(url, error) from error

    def _start_error(self, url: str, error: SparringError) -> SnapshotError:
        return SnapshotError(
            f"cannot start with parameters.start={self.config.start}, {url}: {error}. Set "
            "parameters.start to another snapshot, or to null to start without rows and load some tables "
            "with ParameterClient.load",
            url=url,
        )

    def _begin_with(self, url: str) -> None:
        if self.can_move:
            self._use_partitions(open_snapshot(url).url)
        loaded = self.load(url)
        self.began_with = loaded.url
        _log.info("started with %s, step %d", loaded.url, loaded.step)

    def _start_with_newest(self, folder: str) -> None:
        """Loads the newest intact snapshot; damaged ones are skipped with a warning."""
        urls = list_snapshots(folder)
        known = [find_base(each, self.began_partitions) for each in urls]
        if Base("") in self.began_partitions and not any(known):
            self._use_partitions("")  # all rows are in the push log
            return
        # Its name is enough: it is of this folder, which may have been copied.
        if urls and _name(urls[-1]) == _name(self.superseded):
            # An older snapshot was loaded instead, and pushes since then are in the log.
            of = {find_base(each, self.followed): each for each in urls}
            urls += [of[each] for each in self.followed if each in of][-1:]
        # If a manifest cannot be read, its step is unknown. The snapshot is considered newer if its
        # name sorts later, as in servers of the role `inference`.
        unreadable = list_unreadable_snapshots(folder)
        skipped: dict[str, SparringError] = {}
        for url in reversed(urls):
            try:
                self._begin_with(url)
                break
            except SnapshotDamagedError as error:
                skipped[url] = error
            except (SnapshotError, InvalidArgumentError) as error:
                raise self._start_error(url, error) from error
        skipped |= {
            url: error for url, error in unreadable.items() if url > (self.began_with or "")
        }
        if not skipped:
            return
        self.num_skipped = len(skipped)
        self.not_fresh = "; ".join(map(str, skipped.values()))
        if not self.began_with:
            url, newest = next(iter(skipped.items()))
            raise self._start_error(url, newest) from newest
        _log.warning(
            "the newest snapshot is not intact: %s. The server started with %s; set parameters.start to "
            "start with another snapshot",
            self.not_fresh, self.began_with,
        )  # fmt: skip

    def _use_partitions(self, base: str) -> None:
        """Owns the partitions that the shard had when its push log began to follow a snapshot."""
        shards = self.position.shards
        owned = shards.owners == self.position.shard
        known = find_base(base, self.began_partitions)
        if known is not None:
            owned[:] = False
            for begin, end in self.began_partitions[known]:
                owned[begin:end] = True
        self.moved.use(shards, owned)

    @property
    def container(self) -> StepContainer:
        """Engine with the tables, which `reset` replaces."""
        return self._container

    @property
    def is_outside(self) -> bool:
        """Whether the shard map does not contain this server, which starts without rows."""
        return self.position.shard >= self.position.shards.num_shards

    @property
    def steps(self) -> int:
        """Number of applied pushes, including those in the loaded snapshot."""
        return self._steps_before + self._container.counters.steps

    def persistent_tables(self) -> list[str]:
        """Returns the tables whose storages keep rows after the process has ended."""
        kept = self._storages.items()
        return [name for name, each in kept if each.capabilities.persistent]

    @property
    def has_rows(self) -> bool:
        return any(storage.size for storage in self._storages.values())

    def note_loss(self, why: str) -> None:
        """Prevents saves until a snapshot is loaded or the loss is accepted."""
        if not (self.lost or self.is_settled):
            self.lost = why
            _log.warning("acknowledged pushes may be missing: %s", why)

    def settle(self) -> None:
        """Records that a snapshot was loaded, or that the loss was accepted."""
        self.lost, self.is_settled, self.not_fresh = "", True, ""

    def describe(self) -> ParametersMessage:
        """Returns the methods of the tables and the settings that clients check before a push."""
        methods = (
            TableMethod(name, each.update_method, each.hyper_parameters.model_dump_json())
            for name, each in self.config.tables.items()
        )
        return ParametersMessage(
            tuple(methods),
            self.config.non_finite_gradients,
            self.config.save_seconds,
            self.incarnation,
        )

    # -- methods of ServingTables

    def shapes(self) -> Mapping[str, TableShape]:
        return {
            name: replace(shape, num_rows=self._storages[name].size)
            for name, shape in self._shapes.items()
        }

    def versions(self) -> Sequence[Version]:
        return [Version("", self.steps, "", time.time())]

    def lookup(
        self,
        asked: Sequence[tuple[str, Ids]],
        dtype: RowDtype,
        missing: Missing,
        version: str,
        reserve_rows: ReserveRows | None = None,
    ) -> LookupResult:
        if version:
            raise VersionGoneError(
                f"version {version} was requested, but trainable tables have no versions; set "
                "client.consistency=newest, or use servers of the role inference"
            )
        with self._turn:
            if self.can_move:
                self._check_owned(asked)
            try:
                container = self._container
                found = [
                    found_rows(container.storage(name), container.tables[name], ids, missing)
                    for name, ids in asked
                ]
            except InterruptedLoadError as error:
                raise StatusError(
                    Status.UNAVAILABLE,
                    f"{error}; load it into the service (ParameterClient.load)",
                    reason="interrupted_load",
                ) from error
            return LookupResult(self.versions()[0], found)

    def _check_owned(self, asked: Sequence[tuple[str, Ids]]) -> None:
        """Rejects lookups that were accepted before partitions moved to another shard."""
        for table, ids in asked:
            if not self.moved.owned[partition(ids)].all():
                raise StatusError(
                    Status.UNAVAILABLE,
                    f"table {table!r}: some of the keys have moved to another shard; look up again",
                    reason="moving",
                )

    def scan(self, table: str, cursor: bytes, max_rows: int, version: str) -> ScanResult:
        raise UnsupportedError(
            "the service does not scan trainable tables; save (ParameterClient.save) and read the "
            "snapshot, or publish and serve it"
        )

    def read_model(self, kind: str, begin: int, max_bytes: int, version: str) -> ModelPart:
        raise UnsupportedError(
            "the service has no files of a model, because its tables are trainable; serve snapshots of "
            "the training"
        )

    def refresh(self) -> bool:
        return False

    def gauges(self) -> Mapping[str, float]:
        counters = self._container.counters
        return {
            "pushed_steps": float(self.steps),
            "is_behind": float(bool(self.not_fresh)),
            "rows_updated": float(counters.rows_updated),
            "gradients_not_admitted": float(counters.gradients_not_admitted),
        }

    def close(self) -> None:
        with self._turn:
            self._container.close()

    # -- changes

    def apply(self, token: Token, pushed: Sequence[Gradients]) -> bool:
        """Applies a push, unless it was applied before.

        Returns:
            Whether its rows have changed now.

        Raises:
            SparringError: As in `StepContainer.apply_methods`; no row has changed unless it is a
                `PartialStepError`.
        """
        with self._turn:
            verdict = self.windows.verdict(token)
            behind = self.windows.missing_from(token) if verdict == Verdict.APPLIED else set()
            if verdict != Verdict.NEW and not behind:
                return False
            ahead = self.windows.applied_before(token)
            if ahead or behind:
                # Some partitions came from a shard that had, or had not, applied the push.
                pushed = [_only(each, behind or ahead, is_in=bool(behind)) for each in pushed]
            choices = {}
            for each in pushed:
                self._container.resources.accumulate_by_key(each.table, each.ids, each.gradients)
                method = self.config.tables[each.table].method
                choices[each.table] = MethodChoice(method, each.hyper, self._steps[each.table] + 1)
            try:
                self._container.apply_methods(choices)
            except PartialStepError:
                self.windows.add_part(token)
                raise
            if not behind:
                for each in pushed:
                    self._steps[each.table] += 1
            self.windows.add(token)
            return True

    def table_steps(self) -> dict[str, int]:
        """Returns the number of steps of each table's update method."""
        return dict(self._steps)

    def take_steps(self, pushes: int, steps: Mapping[str, int]) -> None:
        """Continues counting from another shard's numbers.

        Args:
            pushes: Number of pushes.
            steps: Number of steps per table.
        """
        self._steps.update({name: each for name, each in steps.items() if name in self._steps})
        self._steps_before = pushes - self._container.counters.steps

    # -- snapshots

    def begin_save(self, url: str, token: str, step: int, seconds: float) -> Task[SaveResult]:
        """Freezes the current tables, and saves them in the background as this shard's part.

        Args:
            url: URL of the snapshot.
            token: Token of this save, the same on all shards.
            step: Step of the snapshot, the same on all shards.
            seconds: Time for which shards wait for each other.

        Raises:
            SnapshotError: The snapshot exists, or the file system failed.
        """
        with self._turn:
            self._give_up_save()
            options = SaveOptions(
                deadline_seconds=seconds, token=token, step=step, report_failure=False
            )
            # Pushes may have been applied after the first shard had determined the step.
            values = {
                "save": token,
                "pushes": self.steps,
                "steps": dict(self._steps),
                "clients": self.windows.saved(),
                "partitions": np.flatnonzero(self.moved.owned).tolist(),
            }
            states = {STATE: State(values, is_of_rank=True)}
            return self._container.save(url, blocking=False, states=states, options=options)

    def fail_save(self, reason: BaseException) -> None:
        """Cancels the running save, if there is one."""
        running = self._container.saves.running
        if running is not None:
            running.fail(reason)

    def _give_up_save(self) -> None:
        """Cancels a running save when the first shard starts another one, because the coordinator of the
        running save is then gone."""
        running = self._container.saves.running
        if running is not None and not running.is_over.is_set():
            running.fail(
                SnapshotError(
                    f"the save of {running.url} was canceled, because the first shard started another"
                )
            )

    def load(self, url: str, tables: Collection[str] = ()) -> LoadResult:
        """Loads this shard's part of a snapshot of any number of shards or ranks.

        Args:
            url: URL of the snapshot.
            tables: Load only the rows of these tables. Push tokens are loaded if these are all
                tables, and do not change otherwise. Empty loads everything.

        Raises:
            SparringError: As in `StepContainer.load`.
        """
        with self._turn:
            loaded = self._container.load(url, tables=tables or None)
            snapshot = open_snapshot(loaded.url)
            saved = _saved_states(snapshot, np.flatnonzero(self.moved.owned))
            steps = [each["steps"] for each in saved] or [read_method_steps(snapshot)]
            for name in tables or self._steps:
                found = [each[name] for each in steps if name in each]
                self._steps[name] = max(found, default=snapshot.step)
            # Snapshots of ranks, and those of older releases, contain no number of pushes.
            pushes = max((each.get("pushes", 0) for each in saved), default=0) or snapshot.step
            is_all = not tables or set(tables) == set(self._steps)
            if is_all or pushes > self.steps:  # so that the next save is newer than this snapshot
                self._steps_before = pushes - self._container.counters.steps
            if is_all:
                self.windows.load([each["clients"] for each in saved])
            return loaded

    @staticmethod
    def base_of(url: str) -> Base:
        """Returns the identity of a snapshot; of no rows for an empty URL."""
        return Base.of(open_snapshot(url)) if url else Base("")

    def flush(self) -> None:
        """Flushes the storages, so that applied pushes are as durable as the storages support."""
        with self._turn:
            self._container.flush(blocking=True)


def _saved_states(snapshot: Snapshot, own: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Returns steps and push tokens of all shards that had keys of partitions; empty for a snapshot of
    ranks."""
    before = ShardMap.balanced(snapshot.world_size)
    found = []
    for each in range(snapshot.world_size):
        if STATE in snapshot.state_names(each):
            values = snapshot.state(STATE, rank=each).values
            partitions = values.get("partitions", before.partitions_of(each))
            if np.intersect1d(own, partitions).size:
                found.append(values)
    return found


def _name(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2]


def _only(pushed: Gradients, partitions: set[int], *, is_in: bool) -> Gradients:
    """Returns the gradients of keys that are, or are not, in some partitions."""
    kept = np.isin(partition(pushed.ids), list(partitions), invert=not is_in)
    return replace(pushed, ids=pushed.ids[kept], gradients=pushed.gradients[kept])
