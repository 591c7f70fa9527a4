"""Tables in a service that learns: where adapters open them, and how they get their first rows."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage_optional import SupportsReplaceAll
from sparring.engine.container import StepContainer
from sparring.engine.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.rendezvous.environment import EnvironmentOptions, membership_from

__all__ = ["check_alone", "fill_service", "service_storage"]


def service_storage(config: str | os.PathLike[str]) -> StorageChoice:
    """The storage of the service of a file; pushes wait until they are applied."""
    options = {"config": os.fspath(config), "role": "parameters", "wait": "applied"}
    return StorageChoice("remote", options)


def check_alone() -> None:
    """Refuses a process that a launcher started as one of several ranks.

    Raises:
        UnsupportedError: it did.
    """
    try:
        size = membership_from(os.environ, EnvironmentOptions()).world_size
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
