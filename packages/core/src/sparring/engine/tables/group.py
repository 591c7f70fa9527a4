"""The tables of a module or layer of a framework, and the container that keeps them.

A framework's adapter declares tables before it is known which of them belong together. An optimizer
then brings those that it updates into one container, so that a step changes all of them or none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.state import NonFinite
from sparring.engine.tables.storage_choice import StorageChoice, find_storage_device
from sparring.errors import InvalidArgumentError

__all__ = [
    "StorageLike",
    "TableDeclaration",
    "TableGroup",
    "make_declaration",
    "collect_open_storages",
    "join_container",
    "non_finite_policy",
    "shared_settings",
]

StorageLike = str | StorageChoice | Storage | Mapping[str, Any]
"""Which storage keeps a table: the name of a backend; that with options, as a `StorageChoice` or
as ``{"backend": "hkv", "capacity": 1000}``; or an open storage."""


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """A table as the engine wants it."""

    table: TableConfig
    storage: StorageChoice | Storage

    def placed(self, own_device: Callable[[], str | None]) -> TableDeclaration:
        """With ``cuda`` in the storage's options read as what `own_device` says; None leaves it."""
        if not isinstance(self.storage, StorageChoice) or not self.storage.uses_own_device:
            return self
        own = own_device()
        return self if own is None else TableDeclaration(self.table, self.storage.on_device(own))

    @property
    def device(self) -> str:
        """Where the rows are: ``cpu``, or ``cuda:1`` if arrays of that GPU are taken as they are."""
        return find_storage_device(self.storage)


def make_declaration(
    table: TableConfig, storage: StorageLike, *, capacity: int | None, setting: str
) -> TableDeclaration:
    """A table in the storage that a user named.

    Args:
        table: what the rows are.
        storage: what keeps them.
        capacity: the most rows that the storage may hold; None sets no bound.
        setting: how the framework calls `capacity`, for messages.

    Raises:
        InvalidArgumentError: `storage` is no such thing; `capacity` is no positive number, or is
            not that of the open storage.
    """
    if isinstance(storage, Storage):
        if capacity is not None and storage.capacity != capacity:
            raise InvalidArgumentError(
                f"{setting} of table {table.name!r} is {capacity}, but the open storage "
                f"has capacity {storage.capacity}; leave {setting} out",
                table=table.name,
            )
        # The optimizer will see to it that this is the state that it keeps.
        return TableDeclaration(table.with_state(storage.table.state_width), storage)
    if isinstance(storage, str):
        storage = StorageChoice(storage)
    elif isinstance(storage, Mapping):
        options = dict(storage)
        storage = StorageChoice(str(options.pop("backend", "hkv")), options)
    elif not isinstance(storage, StorageChoice):
        raise InvalidArgumentError(
            f"storage of table {table.name!r}: must be the name of a backend, a StorageChoice, a "
            f"mapping or an open storage, found {type(storage).__name__}",
            table=table.name,
        )
    if capacity is None:
        return TableDeclaration(table, storage)
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise InvalidArgumentError(
            f"{setting} of table {table.name!r}: must be a whole number from 1, or None for "
            f"no bound, found {capacity!r}",
            table=table.name,
        )
    options = {"capacity": capacity, **storage.options}
    return TableDeclaration(table, StorageChoice(storage.backend, options))


def shared_settings(table: TableConfig) -> dict[str, Any]:
    """The settings of a table that every adapter's own table configuration has by the same name."""
    return {
        "initializer": table.initializer,
        "admission": table.admission,
        "expire": table.expire,
        "seed": table.seed,
        "placement": table.placement,
    }


class TableGroup:
    """Some tables, and the container that they live in.

    Args:
        declarations: the tables.
        container: where they live; None means a container of the holder's own, made when it is
            first needed, unless `join_container` brings several holders together before any row
            is written.
    """

    def __init__(
        self, declarations: Sequence[TableDeclaration], container: StepContainer | None = None
    ) -> None:
        if container is not None and not isinstance(container, StepContainer):
            raise InvalidArgumentError(
                f"container: found {type(container).__name__}; give a StepContainer() that the modules "
                "of a model share, or leave it out; where rows are kept is storage=…"
            )
        self.declarations = list(declarations)
        self.table_names = [each.table.name for each in self.declarations]
        self.is_container_given = container is not None
        self._container: StepContainer | None = None
        if container is not None:
            self.join(container)

    @property
    def container(self) -> StepContainer:
        """Where the tables live."""
        if self._container is None:
            self.join(StepContainer())
            assert self._container is not None
        return self._container

    @property
    def has_container(self) -> bool:
        return self._container is not None

    @property
    def has_rows(self) -> bool:
        """Whether any of the tables has a row on this rank."""
        container = self._container
        return container is not None and any(map(container.num_rows, self.table_names))

    def join(self, container: StepContainer) -> None:
        """Declares the tables in `container` and stays there.

        Raises:
            InvalidArgumentError: rows exist elsewhere already, or the container knows another
                table of one of these names.
        """
        if self._container is container:
            return
        if self.has_rows:
            raise InvalidArgumentError(
                f"tables {self.table_names} hold rows in another container already; give all "
                "modules one container=… when making them"
            )
        own_device = partial(self._own_device, container)
        placed = [each.placed(own_device) for each in self.declarations]
        for each in placed:
            container.declare(each.table, each.storage)
        self._container = container
        self._on_joined(placed)

    def _own_device(self, container: StepContainer) -> str | None:
        """Which GPU ``cuda`` means here; None leaves it to the container."""
        return container.own_device

    def _on_joined(self, declarations: Sequence[TableDeclaration]) -> None:
        """The tables are in another container than before, declared as `declarations`."""


def collect_open_storages(holders: Sequence[TableGroup]) -> dict[str, Storage]:
    """The storages that were given open, by table."""
    return {
        each.table.name: each.storage
        for holder in holders
        for each in holder.declarations
        if isinstance(each.storage, Storage)
    }


def join_container(holders: Sequence[TableGroup]) -> StepContainer:
    """The one container of all holders; those that are free join it.

    Raises:
        InvalidArgumentError: they live in several containers, or two tables have one name.
    """
    bound = [each for each in holders if each.is_container_given or each.has_rows]
    containers = {id(each.container): each.container for each in bound}
    if len(containers) > 1:
        names = sorted(name for each in bound for name in each.table_names)
        raise InvalidArgumentError(
            f"tables {names} live in {len(containers)} containers, and one step must change all "
            "of them; give all modules one container=… when making them",
            tables=names,
        )
    if containers:
        container = next(iter(containers.values()))
    else:
        made = [each for each in holders if each.has_container]
        container = made[0].container if made else StepContainer()
    for each in holders:
        each.join(container)
    return container


def non_finite_policy(name: str) -> NonFinite:
    """The policy for gradients that hold NaN or infinity, by its name.

    Raises:
        InvalidArgumentError: there is no such policy.
    """
    try:
        return NonFinite(name)
    except ValueError as error:
        raise InvalidArgumentError(
            f"non_finite_gradients must be 'raise' or 'skip', found {name!r}"
        ) from error
