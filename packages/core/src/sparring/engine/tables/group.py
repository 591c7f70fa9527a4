"""Tables of a module or layer of a framework, and the container that contains them.

A framework adapter declares tables before it is known which of them belong together. An optimizer then
adds the tables that it updates to one container, so that a step changes all of them or none.
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
"""Storage of a table: the name of a backend; a backend with options, as a `StorageChoice` or as a
mapping such as ``{"backend": "hkv", "capacity": 1000}``; or an open storage."""


@dataclass(frozen=True, slots=True)
class TableDeclaration:
    """Configuration and storage of a table, as the engine requires them."""

    table: TableConfig
    storage: StorageChoice | Storage

    def placed(self, own_device: Callable[[], str | None]) -> TableDeclaration:
        """Returns the declaration with ``cuda`` in the storage's options replaced by a GPU.

        Args:
            own_device: returns the GPU of this rank, such as ``cuda:1``; None replaces nothing. It is
                only called if an option is ``cuda``.
        """
        if not isinstance(self.storage, StorageChoice) or not self.storage.uses_own_device:
            return self
        own = own_device()
        return self if own is None else TableDeclaration(self.table, self.storage.on_device(own))

    @property
    def device(self) -> str:
        """Device of the rows: ``cpu``, or, for example, ``cuda:1`` if the storage accepts arrays of
        that GPU."""
        return find_storage_device(self.storage)


def make_declaration(
    table: TableConfig, storage: StorageLike, *, capacity: int | None, setting: str
) -> TableDeclaration:
    """Creates the declaration of a table from a user's storage argument.

    Args:
        table: configuration of the table.
        storage: storage of the rows.
        capacity: maximum number of rows; None sets no limit.
        setting: the framework's name of `capacity`, for messages.

    Raises:
        InvalidArgumentError: `storage` has an unsupported type, or `capacity` is not a positive integer
            or differs from the capacity of the open storage.
    """
    if isinstance(storage, Storage):
        if capacity is not None and storage.capacity != capacity:
            raise InvalidArgumentError(
                f"{setting} of table {table.name!r} is {capacity}, but the open storage "
                f"has capacity {storage.capacity}; omit {setting}",
                table=table.name,
            )
        # The optimizer checks later that this is the state that it needs.
        return TableDeclaration(table.with_state(storage.table.state_width), storage)
    if isinstance(storage, str):
        storage = StorageChoice(storage)
    elif isinstance(storage, Mapping):
        options = dict(storage)
        storage = StorageChoice(str(options.pop("backend", "hkv")), options)
    elif not isinstance(storage, StorageChoice):
        raise InvalidArgumentError(
            f"storage of table {table.name!r}: must be the name of a backend, a StorageChoice, a "
            f"mapping or an open storage, found {type(storage).__name__}; pass one of these",
            table=table.name,
        )
    if capacity is None:
        return TableDeclaration(table, storage)
    if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
        raise InvalidArgumentError(
            f"{setting} of table {table.name!r}: must be a positive integer, or None for "
            f"no limit, found {capacity!r}",
            table=table.name,
        )
    options = {"capacity": capacity, **storage.options}
    return TableDeclaration(table, StorageChoice(storage.backend, options))


def shared_settings(table: TableConfig) -> dict[str, Any]:
    """Returns the settings of a table that the table configurations of all adapters share by name.

    Args:
        table: the table whose settings are returned.
    """
    return {
        "initializer": table.initializer,
        "admission": table.admission,
        "expire": table.expire,
        "seed": table.seed,
        "placement": table.placement,
    }


class TableGroup:
    """Tables of one module, and the container that contains them.

    Args:
        declarations: declarations of the tables.
        container: container of the tables. None creates a separate container when it is first needed,
            unless `join_container` joins several groups before any row is written.
    """

    def __init__(
        self, declarations: Sequence[TableDeclaration], container: StepContainer | None = None
    ) -> None:
        if container is not None and not isinstance(container, StepContainer):
            raise InvalidArgumentError(
                f"container: must be a StepContainer, found {type(container).__name__}; pass a "
                "StepContainer() that the modules of a model share, or omit it; storage=… "
                "chooses where rows are stored"
            )
        self.declarations = list(declarations)
        self.table_names = [each.table.name for each in self.declarations]
        self.former_names: dict[str, str] = {}
        """Table → its name in older snapshots; see `StepContainer.declare`."""
        self.is_container_given = container is not None
        self._container: StepContainer | None = None
        if container is not None:
            self.join(container)

    @property
    def container(self) -> StepContainer:
        """Container of the tables, created if necessary."""
        if self._container is None:
            self.join(StepContainer())
            assert self._container is not None
        return self._container

    @property
    def has_container(self) -> bool:
        return self._container is not None

    @property
    def has_rows(self) -> bool:
        """Whether any of the tables has rows on this rank."""
        container = self._container
        return container is not None and any(map(container.num_rows, self.table_names))

    @property
    def is_bound(self) -> bool:
        """Whether the tables must stay in their container."""
        return self.is_container_given or self.has_rows

    def join(self, container: StepContainer) -> None:
        """Declares the tables in `container`, which becomes the container of the group.

        Args:
            container: the container of this rank.

        Raises:
            InvalidArgumentError: rows exist in another container, or `container` has a different table
                with one of these names.
        """
        if self._container is container:
            return
        if self.has_rows:
            raise InvalidArgumentError(
                f"tables {self.table_names} already have rows in another container; pass the same "
                "container=… to all modules"
            )
        own_device = partial(self._own_device, container)
        placed = [each.placed(own_device) for each in self.declarations]
        for each in placed:
            former = self.former_names.get(each.table.name)
            container.declare(each.table, each.storage, former_name=former)
        self._container = container
        self._on_joined(placed)

    def _own_device(self, container: StepContainer) -> str | None:
        """Returns the GPU that ``cuda`` means here, or None for the choice of the container."""
        return container.own_device

    def _on_joined(self, declarations: Sequence[TableDeclaration]) -> None:
        """Called after the tables were declared in a container, as `declarations`."""


def collect_open_storages(holders: Sequence[TableGroup]) -> dict[str, Storage]:
    """Returns the storages that the user opened, by table.

    Args:
        holders: groups of tables, whose declarations contain the storages.
    """
    return {
        each.table.name: each.storage
        for holder in holders
        for each in holder.declarations
        if isinstance(each.storage, Storage)
    }


def join_container(holders: Sequence[TableGroup]) -> StepContainer:
    """Returns the common container of all groups; groups without a fixed container join it.

    Args:
        holders: groups whose tables one step updates together.

    Raises:
        InvalidArgumentError: the groups have several containers, or two tables have the same name.
    """
    bound = [each for each in holders if each.is_bound]
    containers = {id(each.container): each.container for each in bound}
    if len(containers) > 1:
        names = sorted(name for each in bound for name in each.table_names)
        raise InvalidArgumentError(
            f"tables {names} are in {len(containers)} containers, but one step must update all of them; "
            "pass the same container=… to all modules",
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
    """Returns the policy for gradients that contain NaN or infinity, by its name.

    Args:
        name: ``raise`` or ``skip``.

    Raises:
        InvalidArgumentError: there is no such policy.
    """
    try:
        return NonFinite(name)
    except ValueError as error:
        raise InvalidArgumentError(
            f"non_finite_gradients must be 'raise' or 'skip', found {name!r}"
        ) from error
