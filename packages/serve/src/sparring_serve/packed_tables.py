"""Serving snapshots behind the contract of a service: mapped files of sparring-packed."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

import sparring_packed
from sparring.contracts import NUM_PARTITIONS
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring_serve.config import ServingConfig
from sparring_serve.recent_ids import RecentIds
from sparring_serve.service import Place
from sparring_serve.tables import (
    Found,
    Ids,
    Looked,
    Scanned,
    TableShape,
    Version,
    VersionGoneError,
)
from sparring_serve.wire.messages import InitialValues, Missing, RowDtype

__all__ = ["PackedServingTables", "open_packed_tables"]

_CURSOR = struct.Struct("<QQ")
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


def open_packed_tables(config: ServingConfig, place: Place) -> PackedServingTables:
    """Maps the newest serving snapshot, or the pinned one: the partitions of a shard.

    Raises:
        SnapshotError: there is none yet, or it is damaged.
    """
    server, url = config.server, config.snapshots
    if server.pin is not None:
        if os.sep in server.pin or server.pin in ("", ".", ".."):
            raise InvalidArgumentError(
                f"server.pin must be the name of a folder in {url}, found {server.pin!r}"
            )
        url = f"{url.rstrip('/')}/{server.pin}"
    partitions = place.shards.partitions_of(place.shard)
    try:
        packed = sparring_packed.open(
            url,
            verify=server.verify,
            keep_versions=server.keep_versions,
            cache=server.cache,
            partitions=None if partitions == (0, NUM_PARTITIONS) else partitions,
        )
    except SnapshotError as error:
        raise SnapshotError(
            f"{error}. Serving snapshots are written by: sparring publish RUN {config.snapshots}"
        ) from error
    return PackedServingTables(packed, warm_up_seconds=server.warm_up_seconds)


class PackedServingTables:
    """`ServingTables` of mapped files.

    Args:
        packed: opened serving snapshots; closed with this.
        warm_up_seconds: that a newer version may be read before it is served; 0: it is not.
    """

    def __init__(
        self, packed: sparring_packed.PackedTables, *, warm_up_seconds: float = 0.0
    ) -> None:
        self._packed = packed
        self._warm_up_seconds = warm_up_seconds
        self._recent = RecentIds()
        # Newer versions have the same.
        self._initial = {
            each.name: InitialValues(
                each.initializer.kind,
                each.initializer.first,
                each.initializer.second,
                each.seed,
                _DTYPES[each.trained_dtype],
            )
            for each in sparring_packed.read_manifest(packed.snapshot_url).tables
        }
        self._remember()

    def _remember(self) -> None:
        """Copies what each call asks for: to ask the library costs a call for each table."""
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
        self, asked: Sequence[tuple[str, Ids]], dtype: RowDtype, missing: Missing, version: str
    ) -> Looked:
        if self._warm_up_seconds:
            for name, ids in asked:
                self._recent.note(name, ids)
        is_stored = dtype == RowDtype.INT8 and all(
            self._shapes[name].dtype == "int8" for name, _ in asked
        )
        try:
            pulled = self._packed.pull(
                dict(asked),
                dtype="stored" if is_stored else "fp32",
                missing="initial" if missing == Missing.INITIAL else "zeros",
                version=version or None,
            )
        except InvalidArgumentError as error:
            if version and version not in [each.hash for each in self._packed.versions]:
                raise VersionGoneError(f"version {version}: {error}") from None
            raise
        return Looked(
            _version(pulled.version),
            [Found(pulled.rows[name], pulled.found[name]) for name, _ in asked],
        )

    def scan(self, table: str, cursor: bytes, most_rows: int, version: str) -> Scanned:
        if len(cursor) not in (0, _CURSOR.size):
            raise InvalidArgumentError(
                f"cursor: {len(cursor)} bytes, expected those of the answer before, or none to begin"
            )
        begin = _CURSOR.unpack(cursor) if cursor else (0, 0)
        versions = {each.hash: each for each in self._versions}
        wanted = version or self._versions[0].hash
        try:
            chunk = self._packed.scan_chunk(table, begin, most_rows, version=wanted)
        except InvalidArgumentError as error:
            if wanted not in [each.hash for each in self._packed.versions]:
                raise VersionGoneError(f"version {wanted}: {error}") from None
            raise
        following = b"" if chunk.cursor is None else _CURSOR.pack(*chunk.cursor)
        return Scanned(chunk.ids, chunk.rows, following, versions[wanted])

    def refresh(self) -> bool:
        seconds = self._warm_up_seconds
        warm_up = sparring_packed.WarmUp(seconds, self._recent.newest_first) if seconds else None
        is_new = self._packed.refresh(warm_up=warm_up)
        if is_new:
            self._remember()
        return is_new

    def figures(self) -> Mapping[str, float]:
        return self._figures

    def close(self) -> None:
        self._packed.close()


def _version(version: sparring_packed.PackedVersion) -> Version:
    return Version("", version.step, version.hash, version.published)
