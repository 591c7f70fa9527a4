"""Tables of `distribute`: where those of a service are, and how all of them get their first rows."""

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

__all__ = ["fill_service", "choose_service_storage", "write_rows"]


def choose_service_storage(
    config: str | os.PathLike[str], plan: PlanLike, storage: StorageLike
) -> StorageChoice:
    """The storage of the service of a file; pushes wait until they are applied.

    Raises:
        InvalidArgumentError: `plan` or `storage` says where rows are, too.
        UnsupportedError: a launcher started this process as one of several ranks.
    """
    if plan is not None or storage != "hkv":
        raise InvalidArgumentError(
            "distribute: service=… says where rows are; leave out plan and storage"
        )
    _check_alone()
    options = {"config": os.fspath(config), "role": "parameters", "wait": "applied"}
    return StorageChoice("remote", options)


def _check_alone() -> None:
    try:
        size = read_membership(os.environ, EnvironmentOptions()).world_size
    except InvalidArgumentError:
        return  # no launcher started it
    if size > 1:
        raise UnsupportedError(
            f"this process is one of {size} ranks, and trainers of a service have none; start each as a "
            "process of its own, without torchrun or mpiexec",
            world_size=size,
        )


def fill_service(
    container: StepContainer, embeddings: Mapping[str, npt.NDArray[np.floating]]
) -> bool:
    """Gives a service without rows its first ones; one with rows keeps them.

    Args:
        container: with all tables.
        embeddings: table → ``(n, dim)`` of the keys 0 to n - 1.

    Returns:
        Whether it got them.

    Raises:
        UnsupportedError: the storage takes no rows at once.
        InvalidArgumentError: rows of the service have another dtype than a table here.
        SparringError: as `SupportsReplaceAll.replace_all`.
    """
    storages = [container.storage(name) for name in embeddings]
    others = []
    for each in storages:
        table = each.table
        if not isinstance(each, SupportsReplaceAll):
            raise UnsupportedError(
                f"the storage of table {table.name!r} takes no rows of whole tables; use that of "
                "sparring-serve, remote"
            )
        if each.rows_dtype != table.dtype:
            others.append(f"{table.name} is {table.dtype}, and {each.rows_dtype} there")
    if others:
        raise InvalidArgumentError(
            f"weights and the rows of the service differ in dtype: {'; '.join(others)}. Declare the "
            "`dtype` of the weights for these in parameters.tables, or convert the weights first"
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
    """Writes rank 0's rows of a table, each rank a part of them. All ranks call it.

    `values` are ``(n, dim)`` of the keys 0 to n - 1, without the key `skipped`; those of other ranks
    give the shape alone.
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
