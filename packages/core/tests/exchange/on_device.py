"""The ring exchange for arrays of one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.exchange.messages import OwnedGradients, PullRequest, PullResult, PushRequest
from sparring.exchange.ring import RingExchange


class OnDevice:
    """Pulls and pushes with the kernels of a device."""

    def __init__(self, exchange: RingExchange, kernels: KernelSet) -> None:
        self._exchange, self._kernels = exchange, kernels
        self.stager = exchange.stager(kernels)

    def pull_all(self, requests: Sequence[PullRequest], **named: Any) -> list[PullResult]:
        return self._exchange.pull_all(requests, kernels=self._kernels, **named)

    def push_all(self, requests: Sequence[PushRequest]) -> list[OwnedGradients]:
        return self._exchange.push_all(requests, kernels=self._kernels)


def rows_for(table: TableConfig, keys: Any) -> Any:
    """Returns rows ``(len(keys), width)`` that depend on the keys."""
    numbers = np.random.default_rng(7).standard_normal((2000, table.width))
    return numbers[np.asarray(keys) % 2000].astype(table.numpy_dtype)


def wanted(
    storage: Storage | None, table: TableConfig, keys: Any, num_columns: int | None = None
) -> PullRequest:
    """Returns the first columns of rows, or their embeddings if None."""
    columns = Columns(0, table.dim if num_columns is None else num_columns)
    return PullRequest(storage, table, keys, columns)
