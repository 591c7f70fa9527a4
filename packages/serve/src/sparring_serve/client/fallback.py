"""Replacements for rows that no replica returned: stale rows, initial values, or NaN."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from sparring import Uniform, Xavier
from sparring.adapter import initial_rows
from sparring.contracts import INITIALIZERS, Initializer, TableConfig, read_embeddings
from sparring.errors import InvalidArgumentError, SparringError
from sparring_serve.client.answer import RowStatus
from sparring_serve.client.pull_calls import PullCalls, TableResult
from sparring_serve.client.row_cache import RowCache
from sparring_serve.client.splitting import Part
from sparring_serve.config import ClientConfig
from sparring_serve.wire.messages import TableMessage

__all__ = ["Fallback"]


# Servers describe xavier initializers by their bounds.
_INITIALIZERS: dict[str, type[Initializer]] = {**INITIALIZERS, Xavier.kind: Uniform}


class Fallback:
    """Fills in rows that no replica returned, as specified by `on_failure`.

    Args:
        config: Settings of the client.
        clock: Returns the time in seconds.
    """

    def __init__(self, config: ClientConfig, clock: Callable[[], float]) -> None:
        self.raises = config.on_failure == "raise"
        self._gives_initial = config.on_failure in ("initial", "stale_or_initial")
        gives_stale = config.on_failure in ("stale", "stale_or_initial")
        self._cache = RowCache(config.stale_rows) if gives_stale else None
        self._max_seconds = config.max_staleness_seconds or np.inf
        self._on_failure = config.on_failure
        self._clock = clock
        self._tables: dict[str, TableConfig] = {}

    def learn(self, tables: Iterable[TableMessage]) -> None:
        """Stores the initial values that servers describe.

        Raises:
            InvalidArgumentError: `on_failure` needs initial values, and the server does not describe
                them.
        """
        if not self._gives_initial:
            return
        for each in tables:
            try:
                self._tables[each.name] = read_initial_values(each)
            except SparringError as error:
                raise InvalidArgumentError(
                    f"table {each.name!r}: client.on_failure={self._on_failure} needs initial values, "
                    f"but the server does not describe them ({error}); use the same release on both "
                    "sides, or set client.on_failure=flag",
                    table=each.name,
                ) from None

    def remember(self, pulled: PullCalls) -> None:
        """Caches the rows of a lookup of the newest version."""
        if self._cache is None:
            return
        now = self._clock()
        for number, age in pulled.call_ages.items():
            for part in pulled.calls[number].parts:
                table = pulled.tables[part.number]
                answered = table.status[part.positions] <= RowStatus.ABSENT
                self._cache.store(
                    table.name,
                    part.keys[answered],
                    table.rows[part.positions][answered],
                    table.found[part.positions][answered],
                    now - age,
                )

    def fill(
        self, pulled: PullCalls, parts: Iterable[Part], *, of_newest: bool
    ) -> Counter[RowStatus]:
        """Fills in rows that no replica returned; returns the number of rows per status.

        Args:
            pulled: Rows of the lookup.
            parts: Missing keys and the positions of their rows.
            of_newest: Whether the lookup requested the newest version. Stale rows are used only then.
        """
        given: Counter[RowStatus] = Counter()
        for part in parts:
            status = self._fill_part(pulled.tables[part.number], part, of_newest=of_newest)
            for value, count in zip(*np.unique(status, return_counts=True), strict=True):
                given[RowStatus(int(value))] += int(count)
        return given

    def _fill_part(
        self, table: TableResult, part: Part, *, of_newest: bool
    ) -> npt.NDArray[np.uint8]:
        rows = np.full((len(part.keys), table.rows.shape[1]), np.nan, np.float32)
        status = np.full(len(part.keys), RowStatus.FAILED, np.uint8)
        if self._cache is not None and of_newest:
            ages = self._clock() - self._cache.read(table.name, part.keys, rows)
            is_stale = ages <= self._max_seconds
            rows[~is_stale] = np.nan
            status[is_stale] = RowStatus.STALE
            if is_stale.any():
                if table.stale_seconds is None:
                    table.stale_seconds = np.full(len(table.rows), np.nan)
                table.stale_seconds[part.positions] = np.where(is_stale, ages, np.nan)
        config = self._tables.get(table.name)
        if config is not None:
            is_left = status == RowStatus.FAILED
            initial = initial_rows(part.keys[is_left], config)
            rows[is_left] = read_embeddings(config, initial)
            status[is_left] = RowStatus.INITIAL
        table.rows[part.positions] = rows
        table.found[part.positions] = status == RowStatus.STALE
        table.status[part.positions] = status
        return status


def read_initial_values(described: TableMessage) -> TableConfig:
    """Returns the declaration that determines the initial values.

    Raises:
        InvalidArgumentError: The description of the initial values is missing or unknown.
    """
    told = described.initial
    if not told.kind:
        raise InvalidArgumentError("found no kind of initial values; older releases report none")
    kind = _INITIALIZERS.get(told.kind)
    if kind is None:
        raise InvalidArgumentError(
            f"found {told.kind!r}, expected one of {', '.join(_INITIALIZERS)}"
        )
    given = (told.first, told.second)[: len(fields(kind))]
    return TableConfig(
        described.name, described.dim, told.dtype, initializer=kind(*given), seed=told.seed
    )
