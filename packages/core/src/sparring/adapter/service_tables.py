"""Tables of `distribute`: the storage of a parameter service, and the initial rows of all tables."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.optional import SupportsReplaceAll
from sparring.engine.container import StepContainer
from sparring.engine.job.automatic_plan import PlanLike
from sparring.engine.tables.group import StorageLike
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.rendezvous.environment import EnvironmentOptions, read_membership

__all__ = [
    "choose_service_storage",
    "choose_unread_initializer",
    "fill_service",
    "write_rows",
]


def choose_service_storage(
    config: str | os.PathLike[str], plan: PlanLike, storage: StorageLike
) -> StorageChoice:
    """Returns the storage for the parameter service of a configuration. Its pushes wait until they are
    applied.

    Args:
        config: path of the service's configuration.
        plan: plan that was passed to `distribute`; must be None.
        storage: storage that was passed to `distribute`; must be the default.

    Raises:
        InvalidArgumentError: `plan` or `storage` was passed as well.
        UnsupportedError: a launcher started this process as one of several ranks.
    """
    if plan is not None or storage != "hkv":
        raise InvalidArgumentError(
            "distribute: service=… determines where rows are stored; leave out plan and storage"
        )
    _check_alone()
    options = {"config": os.fspath(config), "role": "parameters", "wait": "applied"}
    return StorageChoice("remote", options)


def choose_unread_initializer(storage: StorageLike) -> str | None:
    """Returns the initializer of a table of which all ids are written before they are read: zeros, or
    None in a service, which determines initial values.

    Args:
        storage: storage of the table.
    """
    is_service = isinstance(storage, StorageChoice) and storage.backend == "remote"
    return None if is_service else "zeros"


def _check_alone() -> None:
    try:
        size = read_membership(os.environ, EnvironmentOptions()).world_size
    except InvalidArgumentError:
        return  # no launcher started it
    if size > 1:
        raise UnsupportedError(
            f"distribute: this process is one of {size} ranks, but trainers of a parameter service must "
            "not be ranks of a job; start each of them as a separate process, without torchrun or "
            "mpiexec",
            world_size=size,
        )


def fill_service(
    container: StepContainer, embeddings: Mapping[str, npt.NDArray[np.floating]]
) -> bool:
    """Writes the initial rows of a parameter service, unless it already has rows.

    Args:
        container: container of all tables.
        embeddings: for each table, the ``(n, dim)`` embeddings of the keys 0 to n - 1.

    Returns:
        Whether the rows were written.

    Raises:
        UnsupportedError: the storage does not support replacing all rows.
        InvalidArgumentError: a table of the service has a different dtype than this job's table.
        SparringError: as `SupportsReplaceAll.replace_all`.
    """
    storages = [container.storage(name) for name in embeddings]
    others = []
    for each in storages:
        table = each.table
        if not isinstance(each, SupportsReplaceAll):
            raise UnsupportedError(
                f"distribute: the storage of table {table.name!r} does not support replacing all rows; "
                "use the storage remote of sparring-serve"
            )
        if each.rows_dtype != table.dtype:
            others.append(f"{table.name} is {table.dtype}, in the service {each.rows_dtype}")
    if others:
        raise InvalidArgumentError(
            "distribute: weights and the rows of the service differ in dtype: "
            f"{'; '.join(others)}. Declare the `dtype` of the weights in parameters.tables of the "
            "service, or convert the weights first"
        )
    if any(each.size for each in storages):
        return False
    first = storages[0]
    assert isinstance(first, SupportsReplaceAll)
    first.replace_all(embeddings)
    return True


def write_rows(
    container: StepContainer,
    table: str,
    values: npt.NDArray[np.floating],
    skipped: int | None = None,
) -> None:
    """Writes rank 0's rows to a table. All ranks must call it; each writes a part of the rows.

    Args:
        container: container of the table.
        table: name of the table.
        values: ``(n, dim)`` embeddings of the keys 0 to n - 1. On other ranks than 0, only the shape
            is used.
        skipped: key that is not written; None if all are written.
    """
    collective = container.collective
    values = np.ascontiguousarray(values)
    if collective.world_size > 1:
        mine = values.reshape(-1).view(np.uint8)
        sent = mine if collective.rank == 0 else np.empty(0, np.uint8)
        values = collective.all_gather(sent)[0].view(values.dtype).reshape(values.shape)
    ids = np.arange(len(values))
    ids = ids[ids != skipped] if skipped is not None else ids
    ids = ids[collective.rank :: collective.world_size]
    container.assign(table, ids, values[ids])
