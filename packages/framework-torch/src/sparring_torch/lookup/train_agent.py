"""`TrainAgent`: connects autograd to the step.

    declarations ──► container: the module's own, or joined by the `Optimizer`
    initial rows of tables ──► the container
    ids of a forward pass ──► path_for: `DevicePath`, or None ──► `host`: `HostPath`

Both paths look up rows and hand their gradients to the step. Each module has an agent; `Optimizer`
joins the agents of all its modules in one container and calls `StepContainer.apply`. No other code
needs to know about steps.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring import StepContainer
from sparring.adapter import TableDeclaration, pulls_on_device
from sparring.errors import InvalidArgumentError
from sparring_torch import misuse
from sparring_torch.device.intra_op_threads import borrow_intra_op_threads
from sparring_torch.device.kernels import current_gpu, get_kernel_set
from sparring_torch.device.path import DevicePath
from sparring_torch.lookup.host_path import HostPath
from sparring_torch.lookup.shadow_pooling import Shadow
from sparring_torch.state.copy_container import CopyContainer
from sparring_torch.state.row_copies import CopiedTables

__all__ = ["TrainAgent"]

Index = npt.NDArray[np.int64]
_agents = weakref.WeakKeyDictionary[StepContainer, "weakref.WeakSet[TrainAgent]"]()
"""Agents that have joined a container."""


class TrainAgent(CopiedTables):
    """The tables of a module, and the container that stores them.

    Args:
        declarations: the module's tables.
        features: table and pooling (``sum`` or ``mean``) of each feature that the module looks
            up, in the order of its outputs.
        container: the container to use. None creates a container when it is first needed, unless an
            `Optimizer` joins several agents in one container before any row is written.
        shared: whether agents of other modules may have the same tables.
    """

    def __init__(
        self,
        declarations: Sequence[TableDeclaration],
        features: Sequence[tuple[str, str]],
        container: StepContainer | None = None,
        *,
        shared: bool = False,
    ) -> None:
        self.shared = shared
        self.names_by_path = False
        """Whether `name_tables_by_path` renames tables whose names other modules have, too."""
        self._features = list(features)
        by_table = {each.table.name: each.table.computing_dtype for each in declarations}
        self.dtypes = [
            torch.from_numpy(np.empty(0, by_table[table])).dtype for table, _ in features
        ]
        """Dtype of the embeddings of each feature."""
        computing = set(by_table.values())
        self.output_dtype = torch.float64 if np.dtype(np.float64) in computing else torch.float32
        self._dtype = computing.pop() if len(computing) == 1 else None
        self._path: DevicePath | None = None
        self._host: HostPath | None = None
        self._initial_rows: list[tuple[str, Index, npt.NDArray[Any]]] = []
        self._may_train = False
        self.awaits_state = False
        """Whether an `Optimizer` is being created; initial rows then wait for their state."""
        self.known_method: str | None = None
        """The optimizer of the tables, if its name is known before the optimizer is created."""
        self.known_hyperparameters: Mapping[str, Any] = {}
        self._first_step: int | None = None
        self.has_optimizer = False
        """Whether an optimizer applies the gradients of the tables."""
        self.optimizer: weakref.ref[Any] | None = None
        """The last `Optimizer` of the tables."""
        for each in declarations:
            misuse.check_backend(each.storage, container)
        for device in {each.device for each in declarations} - {"cpu"}:
            # Let the module's constructor raise if there is no such device.
            get_kernel_set(device)
        borrow_intra_op_threads()  # the thread that creates a model also trains it
        super().__init__(declarations, container)

    def _own_device(self, container: StepContainer) -> str | None:
        return container.own_device or current_gpu()

    @property
    def is_trained(self) -> bool:
        """Whether an existing `Optimizer` steps the container of the tables."""
        return self.optimizer is not None and self.optimizer() is not None

    @property
    def is_bound(self) -> bool:
        return super().is_bound or self.is_trained

    def join(self, container: StepContainer) -> None:
        """See `TableGroup.join`.

        Raises:
            InvalidArgumentError: rows or an `Optimizer` exist in another container.
        """
        if self.is_trained and self._container is not container:
            raise InvalidArgumentError(
                f"tables {self.table_names} already have an Optimizer in another container, which "
                "would train no rows; create the Optimizer after the tables join their container",
                tables=self.table_names,
            )
        if self._container is not container:
            self._check_shared(container)
        super().join(container)
        _agents.setdefault(container, weakref.WeakSet()).add(self)

    def _check_shared(self, container: StepContainer) -> None:
        if self._same_names(container):
            gc.collect()  # a module that was replaced, for example in a notebook
        same = self._same_names(container)
        if same:
            misuse.reject_same_names(same)

    def _same_names(self, container: StepContainer) -> list[str]:
        """Returns the tables that another module in a container has and does not share."""
        own = set() if self.shared else set(self.table_names)
        return sorted(
            own.intersection(
                name
                for each in _agents.get(container, ())
                if each is not self and each._container is container and not each.shared
                for name in each.table_names
            )
        )

    def rename(self, names: Mapping[str, str]) -> None:
        """Renames tables that have no rows yet.

        Args:
            names: former name → new name; other tables keep their names.
        """
        self._container = self._host = self._path = None
        self.declarations = [
            replace(
                each, table=replace(each.table, name=names.get(each.table.name, each.table.name))
            )
            for each in self.declarations
        ]
        self.table_names = [names.get(each, each) for each in self.table_names]
        self.former_names |= {new: old for old, new in names.items()}
        self._features = [(names.get(table, table), how) for table, how in self._features]
        self._initial_rows = [
            (names.get(table, table), ids, rows) for table, ids, rows in self._initial_rows
        ]

    def _on_joined(self, declarations: Sequence[TableDeclaration]) -> None:
        self._host = HostPath(self.container, self.table_names, self._features, self._dtype)
        devices = {each.device for each in declarations}
        (device,) = devices if len(devices) == 1 else ("cpu",)
        self._path = None if device == "cpu" else DevicePath(device)
        if self._path is not None:
            self.container.keep_on_device(self.table_names, self._path.kernels)
        if not self.awaits_state:
            self.write_initial_rows()

    def add_initial_rows(self, table: str, ids: Index, embeddings: npt.NDArray[Any]) -> None:
        """Adds rows to `table` as soon as it has a container; all ranks pass the same rows.

        Args:
            ids: ``(n,)``.
            embeddings: ``(n, dim)``.
        """
        self._initial_rows.append((table, ids, embeddings))
        if self.has_container:
            self.write_initial_rows()

    def write_initial_rows(self) -> None:
        """Writes the initial rows of tables; each rank writes a share of them."""
        collective = self.container.collective
        while self._initial_rows:
            table, ids, embeddings = self._initial_rows.pop(0)
            mine = slice(collective.rank, None, collective.world_size)
            self.container.assign(table, ids[mine], embeddings[mine])

    # -- the path of a forward pass

    @property
    def features(self) -> list[tuple[str, str]]:
        """Table and pooling of each feature that the module looks up."""
        return self._features

    @property
    def device(self) -> torch.device:
        """Device that ids should be on: the GPU of the tables if all are on one, else the CPU."""
        _ = self.container
        return torch.device("cpu") if self._path is None else self._path.device

    @property
    def stays_on_device(self) -> bool:
        """Whether lookups never use the host, so that nothing can be prefetched there."""
        container = self.container
        return self._path is not None and self._keeps_rows_on_device(container)

    @property
    def can_prefetch(self) -> bool:
        """Whether rows come to the host, so that lookups can start in advance."""
        return not (self.stays_on_device or self.host.pools_at_owners)

    def _keeps_rows_on_device(self, container: StepContainer) -> bool:
        """Whether rows can stay on the device; the answer is the same on all ranks."""
        names = self.table_names
        return container.reads_directly(names) or pulls_on_device(container.state, names)

    def path_for(self, ids: Tensor, *, is_training: bool) -> DevicePath | None:
        """Returns the path that looks up `ids` on their device; None if the host looks them up.

        Args:
            ids: ids on any device.
            is_training: `AnchoredModule.is_training` of the module.

        Raises:
            InvalidArgumentError: the tables are on a device, and the ids on another one.
        """
        container = self._container or self.container
        if torch._C._functorch.peek_interpreter_stack() is not None:
            misuse.reject_transform(self.table_names)
        if torch._C._is_tracing():  # half the time of torch.jit.is_tracing
            misuse.reject_tracing(self.table_names)
        if is_training and torch.is_grad_enabled():
            if not self._may_train:
                self._check_training(container)
            misuse.check_steps(self.table_names, container)
        if self.is_copy and isinstance(container, CopyContainer):
            container.bring_up_to_date(self.table_names, ids)
        path = self._path
        if path is None:
            return None
        with self.raising_on_all_ranks(path, is_training=is_training):
            path.check_device(self.table_names, "ids", ids)
        return path if self._keeps_rows_on_device(container) else None

    def path_of_gradient(self, ids: Tensor) -> DevicePath | None:
        """Same as `path_for`, for the gradient of a lookup by an operator of torch.

        Args:
            ids: the ids of the lookup.

        Raises:
            InvalidArgumentError: see `path_for`.
        """
        with torch.enable_grad():  # raises if no optimizer applies the gradient
            return self.path_for(ids, is_training=True)

    @property
    def host(self) -> HostPath:
        """The path of lookups for which `path_for` returns None."""
        if self._host is None:
            _ = self.container  # joins a container, which sets the path
            assert self._host is not None
        return self._host

    def _check_training(self, container: StepContainer) -> None:
        """Rejects a forward pass of training if its gradients, or the previous ones, would be lost."""
        try:
            if not self.is_container_given:
                misuse.check_ranks(self.table_names, container)
            step = container.counters.steps
            if self._first_step is None:
                self._first_step = step  # a loaded model has taken steps
            self._may_train = self.has_optimizer or step > self._first_step
            if not self._may_train:
                misuse.check_has_optimizer(self.table_names, container)
        except Exception as error:
            self.raise_on_all_ranks(error, is_training=True)

    def raising_on_all_ranks(
        self, path: DevicePath, *, is_training: bool
    ) -> AbstractContextManager[None]:
        """Raises errors of the block, which precedes a lookup on the device, on all ranks.

        Args:
            path: the path of the lookup.
            is_training: `AnchoredModule.is_training` of the module.
        """
        return path.raising_on_all_ranks(self.container, self.table_names, is_training=is_training)

    def raise_on_all_ranks(self, error: Exception, *, is_training: bool) -> NoReturn:
        """Raises `error`, which occurred before a lookup, on all ranks; the others may be in the lookup.

        Args:
            is_training: `AnchoredModule.is_training` of the module.
        """
        container, is_registered = self.container, is_training and torch.is_grad_enabled()
        # Other ranks use prefetched rows without waiting for this rank.
        is_alone = container.reads_directly(self.table_names)
        if is_alone or (self.host.has_prefetched and is_registered):
            raise error
        if self._path is not None:
            with self.raising_on_all_ranks(self._path, is_training=is_training):
                raise error
        requests = [(table, np.empty(0, np.int64)) for table in self.table_names]
        container.lookup_all(requests, is_registered=is_registered, own_error=error)
        raise error

    def lookup(self, table: str, ids: Index, *, is_training: bool) -> Shadow:
        """Looks up ids of one table for custom modules; returns the rows that autograd sees.

        It registers the lookup for a gradient only in training with autograd enabled. Otherwise it
        stores nothing and creates no rows.

        Args:
            table: name of one of the tables.
            ids: ``(n,)``, C-contiguous.
            is_training: `AnchoredModule.is_training` of the module.
        """
        return self.host.look_up([(table, ids)], is_training=is_training)[0]
