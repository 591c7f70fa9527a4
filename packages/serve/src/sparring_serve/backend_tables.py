"""Tables whose rows stay in the backend that training writes to, with caches in this server.

Rows follow the trainer's change notes. There is no common version of several tables, and no old
versions are kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pydantic import Field, field_validator

from sparring import Columns, StorageChoice, TableConfig, make_plugin_manager, open_storage
from sparring.adapter import dedup
from sparring.contracts import read_embeddings, validate_options
from sparring.errors import ConfigError, InvalidArgumentError, SparringError, UnsupportedError
from sparring_cli import DocumentModel
from sparring_serve.declaration import StorageDeclaration
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
    describe_initial_values,
    in_order_of_ids,
)
from sparring_serve.wire.messages import GateMessage, Missing, RowDtype
from sparring_tiered import CachedStorage, NotesBase, open_change_log

__all__ = ["BackendTableDeclaration", "BackendTables", "open_backend_tables"]


class BackendTableDeclaration(DocumentModel):
    """A table that is read from its backend through caches."""

    storage: StorageDeclaration = Field(
        description="Tiers of the trainer, with `refresh`: `{backend: tiered, options: {tiers: […], "
        "refresh: {…}}}`.",
    )

    @field_validator("storage")
    @classmethod
    def _is_a_stack_that_is_read(cls, storage: StorageDeclaration) -> StorageDeclaration:
        if storage.backend != "tiered" or storage.options.get("refresh") is None:
            raise ValueError(
                "must have the backend tiered with the options tiers and refresh, found backend "
                f"{storage.backend} with {', '.join(storage.options) or 'no options'}"
            )
        manager = make_plugin_manager()
        try:
            checked: Any = validate_options("storage", manager.storage("tiered"), storage.options)
            for tier in checked.tiers:
                validate_options("storage", manager.storage(tier.backend), tier.options)
        except SparringError as error:
            raise ValueError(f"has invalid options: {error}") from None
        return storage


def open_backend_tables(
    declared: Mapping[str, BackendTableDeclaration],
) -> BackendTables:
    """Opens the caches and backends of tables.

    Args:
        declared: Tables by name; the change notes contain their declarations.

    Raises:
        ConfigError: There are no rows or no change notes at the location that the options specify.
        SparringError: A backend cannot be reached.
    """
    manager = make_plugin_manager()
    with ExitStack() as opened:
        storages = {}
        tables = {}
        for name, each in declared.items():
            choice = StorageChoice(each.storage.backend, each.storage.options).on(0, 1, name)
            options: Any = validate_options("storage", manager.storage("tiered"), choice.options)
            try:
                with open_change_log(
                    name, options.refresh.notes, "tiered", choice.options, manager
                ) as log:
                    data, place = log.read_base(), log.place
                if data is None:
                    raise InvalidArgumentError(
                        f"there are no change notes at {place}; add a section change_notes to the "
                        "training configuration, and train"
                    )
                tables[name] = NotesBase.from_bytes(data, place).table
                storage = open_storage(
                    "tiered", tables[name], plugin_manager=manager, **choice.options
                )
            except InvalidArgumentError as error:
                raise ConfigError(f"tables.{name}.storage: {error}") from error
            opened.callback(storage.close)
            assert isinstance(storage, CachedStorage)
            storages[name] = storage
        opened.pop_all()
        return BackendTables(tables, storages)


class BackendTables:
    """`ServingTables` of caches in front of backends.

    Args:
        tables: Declarations with which the tables are trained.
        storages: Storages of these tables; closed with this object.
    """

    not_fresh = ""
    gate = GateMessage()

    def __init__(
        self, tables: Mapping[str, TableConfig], storages: Mapping[str, CachedStorage]
    ) -> None:
        self._tables, self._storages = tables, storages
        self._initial = {name: describe_initial_values(each) for name, each in tables.items()}

    def shapes(self) -> Mapping[str, TableShape]:
        return {
            name: TableShape(
                name,
                table.dim,
                table.dtype,
                self._storages[name].max_num_rows,
                self._initial[name],
                is_bound=True,
            )
            for name, table in self._tables.items()
        }

    def versions(self) -> Sequence[Version]:
        """Returns the version of the oldest table. Its hash is empty, because versions cannot be
        requested."""
        followed = [each.progress() for each in self._storages.values()]
        oldest = min(followed, key=lambda each: each.step)
        # If a note was missed, rows may be older than the newest note.
        fresh = time.time() - max(each.behind_seconds for each in followed)
        published = min(each.published for each in followed)
        return (Version(oldest.run, oldest.step, "", min(published, fresh)),)

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
                f"version {version} was requested, but these tables are read from the backend of the "
                "training, which keeps no versions; set client.consistency=newest, or serve snapshots"
            )
        tables, failures = [], []
        for name, ids in asked:
            once = dedup(ids)
            table = self._tables[name]
            read = self._storages[name].find_available(once.keys, Columns(0, table.embedding_width))
            failed = read.failed if read.failure else None
            rows = read_embeddings(table, read.rows)
            found = FoundRows(rows, read.found, failed)
            tables.append(in_order_of_ids(once, found, table, missing))
            if read.failure:
                failures.append(read.failure)
        return LookupResult(self.versions()[0], tables, "; ".join(failures))

    def scan(self, table: str, cursor: bytes, max_rows: int, version: str) -> ScanResult:
        raise UnsupportedError(
            "the service does not scan tables that are read from the backend of the training; scan "
            "the backend, or serve snapshots"
        )

    def read_model(self, kind: str, begin: int, max_bytes: int, version: str) -> ModelPart:
        raise UnsupportedError(
            "the service has no files of a model, because its tables are read from the backend of the "
            "training; serve snapshots"
        )

    def refresh(self) -> bool:
        taken = [each.refresh() for each in self._storages.values()]
        return any(taken)

    def gauges(self) -> Mapping[str, float]:
        counters = [each.counters() for each in self._storages.values()]

        def total(name: str) -> float:
            return float(sum(getattr(each, name) for each in counters))

        return {
            "cache_hits": total("hits"),
            "cache_misses": total("misses"),
            "cache_filtered": total("filtered"),
            "cache_rows": total("cached_rows"),
            "cache_notes": total("notes"),
            "cache_missed_notes": total("missed_notes"),
            "cache_reread_rows": total("reread_rows"),
            "cache_failed_polls": total("failed_polls"),
            "cache_refresh_seconds": max(each.refresh_seconds for each in counters),
            "cache_behind_seconds": max(each.behind_seconds for each in counters),
        }

    def close(self) -> None:
        with ExitStack() as closing:  # closes all storages even if one raises
            for each in self._storages.values():
                closing.callback(each.close)
