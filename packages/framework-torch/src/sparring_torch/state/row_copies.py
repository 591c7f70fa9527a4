"""Copies and pickles of modules with their rows; rows are copied like weights, or shared.

    copy.deepcopy, pickle, torch.save(model)    rows and state are copied, into a container of the copy;
                                                each rank copies its own, and pickle needs one rank
    copy.deepcopy in `shared_rows`              the copy reads the rows of the original

Modules that share a container also do so in the copy, and a table of several modules is copied once:
`_ContainerMark` and `_TableMark`s represent them, of which `copy` and `pickle` create one copy each.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring import StepContainer
from sparring.adapter import TableGroup
from sparring.contracts import Storage
from sparring.errors import UnsupportedError
from sparring_torch.state import rows_in_state
from sparring_torch.state.copy_container import CopyContainer
from sparring_torch.state.packed_rows import gather_table, pack, restore_table, unpack
from sparring_torch.state.table_names import reserve_table_name

__all__ = ["CopiedTables", "shared_rows"]

_shares_rows: ContextVar[bool] = ContextVar("shares_rows", default=False)


@contextmanager
def shared_rows() -> Iterator[None]:
    """Makes copies by ``copy.deepcopy`` in this block read the rows of the original.

    For example, for averages of the ordinary weights only::

        with sparring_torch.shared_rows():
            averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=…)

    Such a copy reads the current rows of the trained model. It cannot be trained: a lookup in training
    mode with autograd enabled raises, and so does an `Optimizer` for it.

    Examples:
        >>> import copy
        >>> from sparring_torch import Embedding, shared_rows
        >>> items = Embedding(4, name="items")
        >>> with shared_rows():
        ...     copied = copy.deepcopy(items)
        >>> copied.agent.container is items.agent.container
        True
    """
    token = _shares_rows.set(True)
    try:
        yield
    finally:
        _shares_rows.reset(token)


class CopiedTables(TableGroup):
    """Tables of a module that are copied and pickled with their rows."""

    # Specific to this object and its container, so a copy creates its own.
    _host: Any
    _path: Any
    is_copy = False
    """Whether the tables may be averages of the tables of another model."""

    @property
    def container(self) -> StepContainer:
        """See `TableGroup.container`."""
        if self._container is None and self.is_copy:
            self.join(CopyContainer())
        return super().container

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if _shares_rows.get():
            return SharedTables(self)
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        own = {"_host", "_path", "_container"}
        state = {name: value for name, value in self.__dict__.items() if name not in own}
        state["is_container_given"] = state["has_optimizer"] = state["_may_train"] = False
        state["_first_step"] = state["optimizer"] = None
        for each in self.declarations:
            if isinstance(each.storage, Storage):
                _reject(each.table.name, "was given an open storage")
        marks = _get_mark(self.container) if self.has_container else None
        state["_marks"] = marks and (marks, [marks.table(name) for name in self.table_names])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        marks = state.pop("_marks")
        self.__dict__.update(state)
        self._host = self._path = self._container = None
        self.is_copy = True
        for name in self.table_names:
            reserve_table_name(name, self)
        if marks is not None:
            copied, tables = marks
            self.join(copied.container)
            for table in tables:
                table.restore(copied)


class SharedTables:
    """Tables of a module for a copy that only reads them."""

    has_optimizer = False
    is_copy = False

    def __init__(self, original: CopiedTables) -> None:
        self.original = original

    def __getattr__(self, name: str) -> Any:
        if name == "original":  # read before `__init__` has set it
            raise AttributeError(name)
        return getattr(self.original, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.original, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Does not forward to the original, because pickle requires the same class.
        return _same, (self.original,)

    def join(self, container: StepContainer) -> NoReturn:
        """Raises, because an `Optimizer` would train the original twice."""
        raise UnsupportedError(
            f"tables {', '.join(self.original.table_names)} belong to another model, and this copy in "
            "shared_rows() only reads them; give the Optimizer the modules that are trained"
        )

    def path_for(self, ids: Tensor, *, is_training: bool) -> Any:
        """Returns the path of the original. Each forward pass calls it first, so it rejects training."""
        self._check_reads(is_training)
        return self.original.path_for(ids, is_training=is_training)  # type: ignore[attr-defined]

    def lookup(self, table: str, ids: Any, *, is_training: bool) -> Any:
        """Looks up ids in the tables of the original; rejects training."""
        self._check_reads(is_training)
        return self.original.lookup(table, ids, is_training=is_training)  # type: ignore[attr-defined]

    def path_of_gradient(self, _ids: Tensor) -> NoReturn:
        """Rejects the gradient of a compiled program, whose lookup registered none."""
        self._reject_training()

    def _check_reads(self, is_training: bool) -> None:
        if is_training and torch.is_grad_enabled():
            self._reject_training()

    def _reject_training(self) -> NoReturn:
        raise UnsupportedError(
            f"this copy shares the rows of tables {', '.join(self.original.table_names)} with another "
            "model (shared_rows()) and cannot train them; call eval() on it, or use torch.no_grad(). A "
            "copy.deepcopy outside of shared_rows() has separate rows"
        )


def _same(tables: CopiedTables) -> CopiedTables:
    return tables


class _ContainerMark:
    """Represents a container in a copy or a pickle."""

    def __init__(self, container: StepContainer) -> None:
        self._container = weakref.ref(container)
        self._tables: dict[str, _TableMark] = {}

    def table(self, name: str) -> _TableMark:
        """Returns the mark of a table, which is unique."""
        return self._tables.setdefault(name, _TableMark(self._container, name))

    def __reduce__(self) -> Any:
        container = self._container()
        assert container is not None  # the copied object references it
        settings = {
            "non_finite_gradients": container.non_finite_gradients.value,
            "memory_bytes": container.state.memory_bytes,
            "reduction": container.state.reduction,
        }
        return _CopiedContainer, (settings, container.counters.steps)

    def __deepcopy__(self, memo: Any) -> _CopiedContainer:
        _, (settings, steps) = self.__reduce__()
        return _CopiedContainer(settings | {"original": self._container()}, steps)


class _TableMark:
    """Represents a table in a copy or a pickle."""

    def __init__(self, container: weakref.ref[StepContainer], name: str) -> None:
        self._container, self._name = container, name

    def __reduce__(self) -> Any:
        container = self._container()
        assert container is not None
        if container.collective.world_size > 1:
            _reject(self._name, f"is on {container.collective.world_size} ranks")
        # An array, because the picklers of torch.multiprocessing send a tensor by its file descriptor,
        # which is closed with the tensor before a spawned process has opened it.
        return _CopiedTable, (self._name, self._packed().numpy())

    def __deepcopy__(self, memo: Any) -> _CopiedTable:
        return _CopiedTable(self._name, self._packed())

    def _packed(self) -> Tensor:
        container, name = self._container(), self._name
        assert container is not None
        container.join_load()
        num_bytes = rows_in_state.count_row_bytes(container, name)
        if num_bytes > rows_in_state.MAX_BYTES:
            _reject(
                name,
                f"has {num_bytes:,} bytes of rows, more than the maximum of "
                f"{rows_in_state.MAX_BYTES:,}",
            )
        storage = container.entry(name).storage
        if storage is not None and (storage.capabilities.persistent or storage.capabilities.shared):
            _reject(name, "is in a storage that outlives the process and can be opened only once")
        return pack({"format": 1}, {name: gather_table(container, name)}).as_subclass(Tensor)


class _CopiedContainer:
    """The container of a copy."""

    def __init__(self, settings: dict[str, Any], steps: int) -> None:
        self.container = CopyContainer(**settings)
        self.container.state.set_steps(steps)


class _CopiedTable:
    """Rows of one table, until a module writes them to the container of the copy."""

    def __init__(self, name: str, packed: Tensor | npt.NDArray[np.uint8]) -> None:
        self._name = name
        # Earlier releases pickled a tensor.
        self._packed: Tensor | None = torch.as_tensor(packed)

    def restore(self, copied: _CopiedContainer) -> None:
        """Writes the rows in the first call; each module of the table calls it."""
        if self._packed is not None:
            _, tables = unpack(self._packed, f"copy of table {self._name!r}")
            restore_table(copied.container, self._name, tables[self._name])
            self._packed = None


_marks = weakref.WeakKeyDictionary[StepContainer, _ContainerMark]()


def _get_mark(container: StepContainer) -> _ContainerMark:
    return _marks.setdefault(container, _ContainerMark(container))


def _reject(table: str, reason: str) -> NoReturn:
    raise UnsupportedError(
        f"copy or pickle of a model: table {table!r} {reason}. Copy it in `with "
        "sparring_torch.shared_rows():` to read the rows of the original; or create another model, and "
        "transfer the rows with container.save(url) and container.load(url)",
        table=table,
    )
