"""The rows of moving partitions in one shard: reads them at the source, and writes them at the target.

Each change is a `MovedPart`, which the shard's push log contains in its order among the pushes, so that
a replay repeats it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring import StepContainer, Storage
from sparring.contracts import NUM_PARTITIONS, EvictedRows, Keys, ShardMap, partition
from sparring.errors import InvalidArgumentError, SparringError, UnsupportedError
from sparring_serve.parameters.push_window import PushWindows
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.wire.messages import MovedPart, MoveStage
from sparring_serve.wire.rows import as_bytes

__all__ = ["ChangedKeys", "Incoming", "ShardRows"]

_CHUNK_BYTES = 1 << 20
_SCANNED_ROWS = 8_192
_INSTEAD = (
    "save, stop all servers, delete the shard map in the store, and start the new number of shards"
)

Mask = npt.NDArray[np.bool_]


class _Shard(Protocol):
    """The parts of a `ParameterShard` that a move reads and writes."""

    windows: PushWindows

    @property
    def container(self) -> StepContainer: ...

    @property
    def steps(self) -> int: ...

    def table_steps(self) -> dict[str, int]: ...

    def take_steps(self, pushes: int, steps: Mapping[str, int]) -> None: ...


@dataclass(slots=True)
class Incoming:
    """A move to this shard that has begun."""

    move: str
    begin: int
    end: int
    tokens: dict[str, Any] | None = None
    """State of the source when it stopped updating the partitions; None until all rows are here."""
    is_broken: bool = False
    """Whether rows could not be written."""


class ChangedKeys:
    """Observes the writes to moving partitions of one table.

    Args:
        begin: First partition.
        end: Partition after the last one.
    """

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, end
        self._keys: list[Keys] = []
        self._lock = threading.Lock()

    def before_write(self, keys: Keys) -> None:
        """Does nothing; keys count as changed after the write."""

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        changed = keys if evicted is None else np.concatenate([keys, evicted.keys])
        own = partition(changed)
        with self._lock:
            self._keys.append(changed[(own >= self._begin) & (own < self._end)])

    def rows_cleared(self, table: str) -> None:
        """Does nothing: a load is rejected during a move."""

    def take(self) -> Keys:
        """Returns the changed keys since the last call, without repeats."""
        with self._lock:
            keys, self._keys = self._keys, []
        return np.unique(np.concatenate(keys)) if keys else np.empty(0, np.int64)


class ShardRows:
    """Partitions of one shard. All methods are thread-safe and run in turn with pushes and lookups.

    Args:
        shard: Shard whose pushes and steps move with the rows.
        number: Number of the shard, from 0.
        storages: Storage of each table.
        turn: Lock of the shard.
        shards: Shard map at the start.
    """

    def __init__(
        self,
        shard: _Shard,
        number: int,
        storages: Mapping[str, Storage],
        turn: threading.Lock,
        shards: ShardReplicas,
    ) -> None:
        self._shard, self._number = shard, number
        self._storages, self._turn = storages, turn
        self.owned: Mask = shards.owners == number
        self.incoming: Incoming | None = None
        self._shards = shards

    def use(self, shards: ShardReplicas, owned: Mask) -> None:
        """Sets the partitions that this shard has, before rows are loaded.

        Args:
            shards: Shard map.
            owned: ``(4096,)``, whether the shard has each partition.
        """
        self.owned = owned.copy()
        self.describe(shards)

    def describe(self, shards: ShardReplicas) -> None:
        """Tells the engine the owners of partitions, for saves and loads."""
        self._shards = shards
        owners = shards.owners.copy()
        owners[self.owned] = self._number
        if self.incoming is not None:
            owners[self.incoming.begin : self.incoming.end] = self._number
        world_size = max(shards.num_shards, self._number + 1)
        self._shard.container.change_owners(ShardMap(owners, world_size))

    def check_movable(self) -> None:
        """Raises `UnsupportedError` if the rows of a table cannot move."""
        for name, storage in self._storages.items():
            if storage.capabilities.persistent or storage.capabilities.shared:
                raise UnsupportedError(
                    f"resize: the storage of table {name!r} keeps its rows outside of the server, so "
                    f"they cannot move; {_INSTEAD}",
                    table=name,
                )
            if self._shard.container.tables[name].admission is not None:
                raise UnsupportedError(
                    f"resize: the admission filter of table {name!r} cannot be divided while it "
                    f"learns; {_INSTEAD}",
                    table=name,
                )

    # -- at the source

    def track(self, begin: int, end: int) -> dict[str, ChangedKeys]:
        """Starts recording the keys of partitions that change, for each table."""
        changed = {}
        with self._turn:
            for name in self._storages:
                changed[name] = ChangedKeys(begin, end)
                self._shard.container.entry(name).write_log.add_observer(changed[name])
        return changed

    def stop_tracking(self, changed: Mapping[str, ChangedKeys]) -> None:
        """Ends `track`."""
        for name, each in changed.items():
            self._shard.container.entry(name).write_log.remove_observer(each)

    def scan(self, begin: int, end: int) -> Iterator[tuple[str, Keys]]:
        """Yields the keys of partitions in chunks, with their table. Pushes continue between chunks."""
        for name, storage in self._storages.items():
            chunks = storage.scan(_SCANNED_ROWS)
            while True:
                with self._turn:
                    chunk = next(chunks, None)
                    if chunk is None:
                        break
                    own = partition(chunk.keys)
                    keys = chunk.keys[(own >= begin) & (own < end)].copy()
                if len(keys):
                    yield name, keys

    def read(self, part: MovedPart, table: str, keys: Keys) -> list[MovedPart]:
        """Returns messages with the current rows of keys, and those that have no row."""
        with self._turn:
            return list(self._read(part, table, keys))

    def _read(self, part: MovedPart, table: str, keys: Keys) -> Iterator[MovedPart]:
        storage = self._storages[table]
        row_bytes = max(1, storage.table.width * storage.table.numpy_dtype.itemsize)
        most = max(1, _CHUNK_BYTES // row_bytes)
        for at in range(0, len(keys), most):
            chunk = keys[at : at + most]
            found = storage.find(chunk)
            yield MovedPart(
                MoveStage.ROWS,
                part.move,
                part.begin,
                part.end,
                table,
                as_bytes(chunk[found.found]),
                as_bytes(np.ascontiguousarray(found.rows[found.found])),
                as_bytes(chunk[~found.found]),
            )

    def finish(self, part: MovedPart, changed: Mapping[str, ChangedKeys]) -> list[MovedPart]:
        """Returns the last changed rows and the applied pushes, after pushes to the partitions ended."""
        with self._turn:
            parts = [
                each
                for name, keys in changed.items()
                for each in self._read(part, name, keys.take())
            ]
            tokens = {
                "clients": self._shard.windows.saved(),
                "steps": self._shard.table_steps(),
                "pushes": self._shard.steps,
            }
        ready = MovedPart(
            MoveStage.READY,
            part.move,
            part.begin,
            part.end,
            tokens=json.dumps(tokens).encode(),
        )
        return [*parts, ready]

    def erase_left(self, begin: int, end: int) -> None:
        """Erases the rows of partitions that this shard no longer has; pushes continue in between."""
        for name, keys in self.scan(begin, end):
            with self._turn:
                gone = keys[~self.owned[partition(keys)]]
                if len(gone):
                    self._storages[name].erase(gone)

    # -- at the target, and for replays

    def apply(self, part: MovedPart) -> None:
        """Applies a record of the push log."""
        with self._turn:
            stage = MoveStage(part.stage)
            if stage is MoveStage.BEGIN:
                self._cancel()
                self.incoming = Incoming(part.move, part.begin, part.end)
                self.describe(self._shards)
            elif stage is MoveStage.CANCEL:
                self._cancel()
            elif stage is MoveStage.ROWS:
                self._write(part)
            elif stage is MoveStage.READY:
                if self.incoming is not None and not self.incoming.is_broken:
                    self.incoming.tokens = json.loads(bytes(part.tokens))
            elif stage is MoveStage.OWN:
                self._own(part)
            elif stage is MoveStage.LEAVE:
                self._leave(part)

    def check(self, part: MovedPart) -> None:
        """Raises `InvalidArgumentError` if a received part does not match the tables."""
        storage = self._storages.get(part.table)
        if part.stage == MoveStage.ROWS:
            width = 0 if storage is None else storage.table.width
            row_bytes = width * (0 if storage is None else storage.table.numpy_dtype.itemsize)
            keys = bytes(part.keys) + bytes(part.erased)
            is_valid = not (len(part.keys) % 8 or len(part.erased) % 8)
            is_valid &= storage is not None and len(part.rows) == len(part.keys) // 8 * row_bytes
            if is_valid:
                own = partition(np.frombuffer(keys, np.int64))
                is_valid = bool(((own >= part.begin) & (own < part.end)).all())
            if not is_valid:
                raise InvalidArgumentError(
                    f"table {part.table!r}: the rows have another size than here, or keys of other "
                    "partitions; start all servers with the same tables",
                    table=part.table,
                )
        elif part.stage == MoveStage.READY:
            try:
                tokens = json.loads(bytes(part.tokens))
                PushWindows(1).load([tokens["clients"]])
                sum([tokens["pushes"], *(tokens["steps"][name] for name in self._storages)])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidArgumentError(f"the state of pushes is invalid: {error}") from error

    def _write(self, part: MovedPart) -> None:
        storage = self._storages[part.table]
        keys = np.frombuffer(part.keys, np.int64)
        rows = np.frombuffer(part.rows, storage.table.numpy_dtype)
        erased = np.frombuffer(part.erased, np.int64)
        try:
            if len(keys):
                storage.upsert(keys.copy(), rows.reshape(len(keys), -1).copy())
            if len(erased):
                storage.erase(erased.copy())
        except SparringError:
            if self.incoming is not None:
                self.incoming.is_broken = True
            raise

    def _cancel(self) -> None:
        """Drops the rows of a move that did not end."""
        found, self.incoming = self.incoming, None
        if found is not None:
            foreign = np.zeros(NUM_PARTITIONS, np.bool_)
            foreign[found.begin : found.end] = True
            self._erase(foreign & ~self.owned)
            self.describe(self._shards)

    def _own(self, part: MovedPart) -> None:
        partitions = range(part.begin, part.end)
        found, self.incoming = self.incoming, None
        if found is not None and found.tokens is not None:
            tokens = found.tokens
            if self.owned.any():
                self._shard.windows.join(tokens["clients"], partitions)
            else:
                # Without partitions, this shard has nothing that differs from the source.
                self._shard.windows.load([tokens["clients"]])
                self._shard.windows.keep(partitions)
                self._shard.take_steps(tokens["pushes"], tokens["steps"])
        self.owned[part.begin : part.end] = True
        self.describe(self._shards)

    def _leave(self, part: MovedPart) -> None:
        left = np.zeros(NUM_PARTITIONS, np.bool_)
        left[part.begin : part.end] = True
        self.owned &= ~left
        self._shard.windows.leave(set(range(part.begin, part.end)))
        self.describe(self._shards)

    def _erase(self, partitions: Mask) -> None:
        for storage in self._storages.values():
            for chunk in storage.scan():
                keys = chunk.keys[partitions[partition(chunk.keys)]]
                if len(keys):
                    storage.erase(keys.copy())
