"""Tables of a service that are read from serving snapshots, whose files sparring-packed maps."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sparring_packed
from sparring.adapter import open_root
from sparring.contracts import NUM_PARTITIONS
from sparring.errors import InvalidArgumentError, SnapshotError, SnapshotIOError, SparringError
from sparring_serve.config import ServingConfig
from sparring_serve.service import ShardPosition
from sparring_serve.tables.contract import (
    FoundRows,
    Ids,
    LookupResult,
    ModelPart,
    ReserveRows,
    ScanResult,
    TableShape,
    Version,
    VersionGoneError,
)
from sparring_serve.tables.recent_ids import RecentIds
from sparring_serve.wire.messages import (
    GateMessage,
    InitialValues,
    Missing,
    ModelFileMessage,
    RowDtype,
)

__all__ = ["PackedServingTables", "initial_values_of", "open_packed_tables"]

_log = logging.getLogger(__name__)

_CURSOR = struct.Struct("<QQ")
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}


def initial_values_of(table: sparring_packed.ServingTable) -> InitialValues:
    """Returns a description of the initial values of a table in a manifest."""
    initializer = table.initializer
    return InitialValues(
        initializer.kind,
        initializer.first,
        initializer.second,
        table.seed,
        _DTYPES[table.trained_dtype],
    )


def open_packed_tables(config: ServingConfig, position: ShardPosition) -> PackedServingTables:
    """Maps a shard's partitions of the newest intact serving snapshot, or of the pinned one.

    Raises:
        SnapshotError: There is no serving snapshot, the pinned one is damaged, or all are damaged.
    """
    server, folder = config.server, config.snapshots.rstrip("/")
    partitions = position.shards.partitions_of(position.shard)

    def open_at(url: str) -> sparring_packed.PackedTables:
        return sparring_packed.open(
            url,
            verify=server.verify,
            keep_versions=server.keep_versions,
            cache=server.cache,
            partitions=None if partitions == (0, NUM_PARTITIONS) else partitions,
        )

    if server.pin is not None:
        try:
            packed = open_at(f"{folder}/{server.pin}")
        except SnapshotError as error:
            raise SnapshotError(
                f"{error}. server.pin={server.pin} selects this version: select another folder of "
                f"{folder}, or remove server.pin to serve the newest intact version"
            ) from error
        return PackedServingTables(packed, warm_up_seconds=server.warm_up_seconds)
    try:
        return PackedServingTables(
            open_at(config.snapshots),
            warm_up_seconds=server.warm_up_seconds,
            folder=config.snapshots,
        )
    except (SnapshotError, InvalidArgumentError) as error:
        names = _names(folder)
        older = _open_older(folder, names, open_at)
        if older is None and isinstance(error, SnapshotError):
            raise SnapshotError(
                f"{error}. To write a serving snapshot: sparring publish RUN --output {config.snapshots}"
            ) from error
        if older is None:
            raise
        behind = Behind(
            str(error), names, lambda: _names(folder), lambda: open_at(config.snapshots)
        )
    _log.warning(
        "the newest version cannot be served: %s. Version %s, step %d, is served until an intact newer "
        "one is published; server.pin=%s serves no other",
        behind.refused, older.snapshot_url, older.version.step, Path(older.snapshot_url).name,
    )  # fmt: skip
    return PackedServingTables(
        older, warm_up_seconds=server.warm_up_seconds, behind=behind, folder=config.snapshots
    )


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(open_root(folder).names())
    except OSError:
        return frozenset()


def _open_older(
    folder: str,
    names: frozenset[str],
    open_at: Callable[[str], sparring_packed.PackedTables],
) -> sparring_packed.PackedTables | None:
    """Opens the newest intact serving snapshot; returns None if there is none."""
    found: list[tuple[tuple[int, int], str]] = []
    for name in names:
        try:
            found.append((sparring_packed.read_manifest(f"{folder}/{name}").order, name))
        except SparringError:
            continue  # not a serving snapshot, or its manifest is damaged
    for _, name in sorted(found, reverse=True):
        try:
            return open_at(f"{folder}/{name}")
        except (SnapshotError, InvalidArgumentError) as error:
            _log.warning("serving snapshot %s/%s is skipped: %s", folder, name, error)
    return None


_RETRY_SECONDS = 60.0
"""A rejected version is opened again after this time, because its files may be complete by then."""


@dataclass(slots=True)
class Behind:
    """The newest version, which could not be opened when the server started.

    Args:
        refused: Reason why it was rejected.
        names: Content of the folder at the last attempt.
        list_names: Lists the folder.
        open_newest: Opens the newest version.
        tried: Time of the last attempt, as returned by `time.monotonic`.
    """

    refused: str
    names: frozenset[str]
    list_names: Callable[[], frozenset[str]]
    open_newest: Callable[[], sparring_packed.PackedTables]
    tried: float = field(default_factory=time.monotonic)

    def retry(self) -> sparring_packed.PackedTables:
        """Opens the newest version.

        Raises:
            SparringError: It is rejected again, or nothing has changed and the last attempt was less
                than a minute ago.
        """
        names, now = self.list_names(), time.monotonic()
        if names == self.names and now - self.tried < _RETRY_SECONDS:
            raise SnapshotError(self.refused)
        self.names, self.tried = names, now
        try:
            return self.open_newest()
        except SparringError as error:
            self.refused = str(error)
            raise


class PackedServingTables:
    """`ServingTables` of mapped files.

    Args:
        packed: Opened serving snapshots; closed with this object.
        warm_up_seconds: Maximum time to read a newer version before it is served; 0 means no warm-up.
        behind: The newest version, if it could not be opened and `packed` is older.
        folder: Folder of serving snapshots whose gate is reported; None: it has no effect.
    """

    def __init__(
        self,
        packed: sparring_packed.PackedTables,
        *,
        warm_up_seconds: float = 0.0,
        behind: Behind | None = None,
        folder: str | None = None,
    ) -> None:
        self._packed = packed
        self._folder = folder
        self._damaged_gate = ""
        self.gate = GateMessage()
        self._behind = behind
        self.not_fresh = "" if behind is None else behind.refused
        self._warm_up_seconds = warm_up_seconds
        self._recent = RecentIds()
        # All versions have the same initializers.
        self._initial = {
            each.name: initial_values_of(each)
            for each in sparring_packed.read_manifest(packed.snapshot_url).tables
        }
        self._remember()
        self._note_gate()

    def _remember(self) -> None:
        """Caches data that each lookup needs, which avoids a call of the library per table and
        lookup."""
        packed = self._packed
        self._shapes = {
            name: TableShape(
                name,
                each.dim,
                _DTYPES.get(each.dtype, each.dtype),
                each.num_rows,
                self._initial[name],
                is_bound=packed.num_layers > 1,
            )
            for name, each in packed.tables.items()
        }
        self._versions = tuple(map(_version, packed.versions))
        self._figures = {
            "layers": float(packed.num_layers),
            "mapped_bytes": float(packed.mapped_bytes),
        }
        warmed = packed.warmed_up
        if warmed is not None:
            self._figures |= {
                "warm_up_seconds": warmed.seconds,
                "warm_up_ids": float(warmed.num_ids),
                "warm_up_bytes": float(warmed.directory_bytes),
            }

    def shapes(self) -> Mapping[str, TableShape]:
        return self._shapes

    def versions(self) -> Sequence[Version]:
        return self._versions

    def lookup(
        self,
        asked: Sequence[tuple[str, Ids]],
        dtype: RowDtype,
        missing: Missing,
        version: str,
        reserve_rows: ReserveRows | None = None,
    ) -> LookupResult:
        if self._warm_up_seconds:
            for name, ids in asked:
                self._recent.note(name, ids)
        is_stored = dtype == RowDtype.INT8 and all(
            self._shapes[name].dtype == "int8" for name, _ in asked
        )
        out = None
        if reserve_rows is not None and (is_stored or dtype == RowDtype.FLOAT32):
            out = dict(zip([name for name, _ in asked], reserve_rows(), strict=True))
        try:
            pulled = self._packed.pull(
                dict(asked),
                dtype="stored" if is_stored else "fp32",
                missing="initial" if missing == Missing.INITIAL else "zeros",
                version=version or None,
                out=out,
            )
        except InvalidArgumentError as error:
            if version and version not in [each.hash for each in self._packed.versions]:
                raise VersionGoneError(f"version {version}: {error}") from None
            raise
        return LookupResult(
            _version(pulled.version),
            [FoundRows(pulled.rows[name], pulled.found[name]) for name, _ in asked],
        )

    def scan(self, table: str, cursor: bytes, max_rows: int, version: str) -> ScanResult:
        if len(cursor) not in (0, _CURSOR.size):
            raise InvalidArgumentError(
                f"cursor: found {len(cursor)} bytes, expected the cursor of the previous reply, or an "
                "empty one for the first chunk"
            )
        begin = _CURSOR.unpack(cursor) if cursor else (0, 0)
        versions = {each.hash: each for each in self._versions}
        wanted = version or self._versions[0].hash
        try:
            chunk = self._packed.scan_chunk(table, begin, max_rows, version=wanted)
        except InvalidArgumentError as error:
            if wanted not in [each.hash for each in self._packed.versions]:
                raise VersionGoneError(f"version {wanted}: {error}") from None
            raise
        following = b"" if chunk.cursor is None else _CURSOR.pack(*chunk.cursor)
        return ScanResult(chunk.ids, chunk.rows, following, self._find_version(wanted, versions))

    def _note_gate(self) -> None:
        """Reads the state of the gate, which the reader of the files obeys, and logs changes."""
        if self._folder is None:
            return
        try:
            read, damage = sparring_packed.read_gate(self._folder), ""
        except SnapshotIOError:
            return  # the refresh reports it
        except SnapshotError as error:
            read, damage = sparring_packed.Gate(), str(error)
        if damage != self._damaged_gate and damage:
            _log.warning("the gate is ignored: %s", damage)
        self._damaged_gate = damage
        gate = GateMessage(read.is_closed, read.reason, read.pin, read.pinned_by, read.since)
        if gate != self.gate:
            state = "closed" if gate.is_closed else "open"
            pin = f"{gate.pin}, by the {gate.pinned_by}" if gate.pin else "none"
            _log.warning("the gate is %s (%s); pin: %s", state, gate.reason or "no reason", pin)
        self.gate = gate

    def read_model(self, kind: str, begin: int, max_bytes: int, version: str) -> ModelPart:
        versions = {each.hash: each for each in self._versions}
        wanted = version or self._versions[0].hash
        try:
            found = self._packed.read_model(kind, begin, max_bytes, version=wanted)
        except InvalidArgumentError as error:
            if wanted not in [each.hash for each in self._packed.versions]:
                raise VersionGoneError(f"version {wanted}: {error}") from None
            raise
        files = [ModelFileMessage(each.kind, each.size_bytes, each.hash) for each in found.files]
        return ModelPart(self._find_version(wanted, versions), files, found.content)

    def _find_version(self, wanted: str, known: Mapping[str, Version]) -> Version:
        """Returns a version that the reader just read; during a refresh, it may be newer than the
        known ones."""
        found = known.get(wanted)
        if found is not None:
            return found
        return next(_version(each) for each in self._packed.versions if each.hash == wanted)

    def refresh(self) -> bool:
        self._note_gate()
        try:
            if self._behind is None:
                is_new = self._refresh()
            else:
                # Calls in progress use the previous tables, which are closed when the last of these
                # calls has ended.
                self._packed, self._behind, is_new = self._retry(self._behind), None, True
        except SparringError as error:
            self.not_fresh = str(error)
            raise
        self.not_fresh = ""
        if is_new:
            self._remember()
        return is_new

    def _retry(self, behind: Behind) -> sparring_packed.PackedTables:
        newest = behind.retry()
        found, served = ", ".join(newest.tables), ", ".join(self._packed.tables)
        if found != served:
            name = newest.snapshot_url.rpartition("/")[2]
            newest.close()
            behind.refused = (
                f"serving snapshot {name} has the tables {found}, but {served} are served; restart "
                "the server"
            )
            raise InvalidArgumentError(behind.refused)
        return newest

    def _refresh(self) -> bool:
        seconds = self._warm_up_seconds
        warm_up = sparring_packed.WarmUp(seconds, self._recent.newest_first) if seconds else None
        return self._packed.refresh(warm_up=warm_up)

    def gauges(self) -> Mapping[str, float]:
        return {
            **self._figures,
            "is_behind": float(bool(self.not_fresh)),
            "gate_is_closed": float(self.gate.is_closed),
            "gate_is_pinned": float(bool(self.gate.pin)),
        }

    def close(self) -> None:
        self._packed.close()


def _version(version: sparring_packed.PackedVersion) -> Version:
    return Version("", version.step, version.hash, version.published)
