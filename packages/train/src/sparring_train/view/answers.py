"""Answers to the requests of the page, as values for JSON. Keys are strings, because JavaScript's numbers
cannot represent all of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from sparring import PluginManager, latest_snapshot, open_snapshot
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring_cli import TableDifference
from sparring_train.view.colors import Colors
from sparring_train.view.numbers import has_umap, map_points, summarize_numbers
from sparring_train.view.source import OnProgress, Source, TableFacts, TableSample
from sparring_train.view.trained import TrainedSource

__all__ = ["LookView", "as_json_value", "open_source"]

_MAX_TEXT = 1_000
"""Maximum length of a parameter."""

_MAX_TOP = 1_000
_MAX_MAP_METHODS = 8

Parameters = Mapping[str, str]


def open_source(url: str, manager: PluginManager) -> Source:
    """Opens a snapshot, the newest one in a folder of snapshots, or a serving snapshot.

    Args:
        url: Path or URL.
        manager: Finds the kinds of data.

    Raises:
        SnapshotError: There is none, or it is damaged.
        UnsupportedError: It is a serving snapshot, and sparring-packed is not installed.
    """
    try:
        return TrainedSource(open_snapshot(url), manager)
    except SnapshotError as error:
        newest = latest_snapshot(url)
        if newest is not None:
            return TrainedSource(newest, manager)
        served = _open_served(url)
        if served is None:
            raise error from None
        return served


def _open_served(url: str) -> Source | None:
    try:
        import sparring_packed  # noqa: F401 - whether it is installed
    except ImportError:
        return None
    from sparring_train.view.served import ServedSource, is_serving_snapshot

    return ServedSource(url) if is_serving_snapshot(url) else None


class LookView:
    """What the page shows about one source. Any number of threads may use it.

    Args:
        source: The shown snapshot.
        other: A version to compare with; None if the user chooses one on the page.
        colors: Column of a file by which the map can be colored.
    """

    def __init__(
        self, source: Source, other: Source | None = None, colors: Colors | None = None
    ) -> None:
        self.source, self.other, self.colors = source, other, colors
        self._lock = threading.Lock()
        # Numba, which UMAP uses, may end the process if two threads compute a map.
        self._mapping = threading.Lock()
        self._samples: dict[str, TableSample] = {}
        self._maps: dict[tuple[str, str], dict[str, Any]] = {}
        self._answers: dict[str, Callable[[Parameters, OnProgress], Any]] = {
            "overview": lambda _, __: self.overview(),
            "versions": lambda _, __: self._versions(),
            "sample": lambda given, _: self.sample(
                _text(given, "table"), given.get("method", "pca")
            ),
            "names": lambda given, _: self.names(_text(given, "table")),
            "ages": lambda given, _: self._ages(_text(given, "table")),
            "row": lambda given, _: self.source.row(_text(given, "table"), _text(given, "id")),
            "history": lambda given, _: self.source.history(
                _text(given, "table"), _text(given, "id")
            ),
            "neighbors": self._neighbors,
            "measure": self._measure,
            "difference": self._difference,
        }
        self._parameters = {
            "sample": {"table", "method"},
            "names": {"table"},
            "ages": {"table"},
            "row": {"table", "id"},
            "history": {"table", "id"},
            "neighbors": {"table", "id", "k", "metric"},
            "measure": {"table"},
            "difference": {"table", "with", "top"},
        }

    @property
    def requests(self) -> frozenset[str]:
        """Names of all requests."""
        return frozenset(self._answers)

    @property
    def long_requests(self) -> frozenset[str]:
        """Names of the requests that read all rows of a table."""
        return frozenset({"neighbors", "measure", "difference"})

    def answer(self, request: str, parameters: Parameters, on_progress: OnProgress) -> Any:
        """Answers a request of the page.

        Args:
            request: One of `requests`.
            parameters: Its parameters.
            on_progress: Receives the share that a long computation has completed.

        Raises:
            InvalidArgumentError: A parameter is missing, unknown or invalid.
            SparringError: For example, there is no such table, or a file is damaged.
        """
        known = self._parameters.get(request, set())
        for name, value in parameters.items():
            if name not in known:
                raise InvalidArgumentError(
                    f"request {request}: found the unknown parameter {name[:40]!r}, expected some of: "
                    f"{', '.join(sorted(known)) or 'none'}"
                )
            if len(value) > _MAX_TEXT:
                raise InvalidArgumentError(
                    f"request {request}: {name} has {len(value):,} characters, expected at most "
                    f"{_MAX_TEXT:,}"
                )
        return as_json_value(self._answers[request](parameters, on_progress))

    def overview(self) -> dict[str, Any]:
        """Returns the facts of the manifests: what the page shows first."""
        source = self.source
        return {
            "kind": source.kind,
            "url": source.url,
            "step": source.step,
            "version": source.version,
            "time": source.time,
            "chain": list(source.chain()),
            "with": None if self.other is None else self.other.url,
            "has_umap": has_umap(),
            "has_ages": source.has_ages,
            "tables": [
                _describe(each)
                for each in sorted(source.describe_tables(), key=lambda each: -each.most_rows)
            ],
        }

    def sample(self, table: str, method: str = "pca") -> dict[str, Any]:
        """Returns a sample of a table: keys, numbers, their histograms, and the points of a map.

        Args:
            table: Name of the table.
            method: Method of the map, ``pca`` or ``umap``.

        Raises:
            SparringError: There is no such table, or the method is not available.
        """
        found = self._sample(table)
        with self._lock:
            known = self._maps.get((table, method))
        if known is None:
            with self._mapping:
                known = map_points(found.rows.embeddings, cast(Any, method))
            with self._lock:
                if len(self._maps) < _MAX_MAP_METHODS * len(self.source.describe_tables()):
                    self._maps[table, method] = known
        colors = None
        if self.colors is not None:
            values = self.colors.of(found.rows.keys)
            if np.isfinite(values).any():  # The file may contain ids of another table.
                colors = {
                    "name": self.colors.name,
                    "values": _rounded(values),
                    "groups": list(self.colors.groups),
                }
        return {
            "table": table,
            "rows": found.num_rows,
            "is_exact": found.is_exact,
            "keys": [*map(str, found.rows.keys.tolist())],
            "numbers": {name: _rounded(each) for name, each in found.rows.numbers.items()},
            "summaries": summarize_numbers(found.rows.numbers),
            "map": known,
            "colors": colors,
        }

    def difference(
        self, table: str, other: Source, top: int, on_progress: OnProgress
    ) -> dict[str, Any]:
        """Compares a table of another version with the shown one.

        Raises:
            SparringError: The tables cannot be compared.
        """
        found = self.source.compare(other, table, top, on_progress)
        moved = self.source.names(
            table, np.array([each.key for each in found.most_moved], np.int64)
        )
        return {
            "before": {"url": other.url, "step": other.step},
            "after": {"url": self.source.url, "step": self.source.step},
            **_count_differences(found),
            "most_moved": [
                {"key": str(each.key), "name": name, "moved": each.moved, "norms": each.norms}
                for each, name in zip(found.most_moved, moved, strict=True)
            ],
        }

    def close(self) -> None:
        """Releases files."""
        for each in (self.source, self.other):
            if each is not None:
                each.close()

    def _sample(self, table: str) -> TableSample:
        with self._lock:
            if table not in self._samples:
                self._samples[table] = self.source.sample(table)
            return self._samples[table]

    def _versions(self) -> dict[str, Any]:
        return {"versions": list(self.source.versions()), "previous": self.source.previous()}

    def names(self, table: str) -> list[str]:
        """Returns the strings of the keys of a sample, or their numbers."""
        return self.source.names(table, self._sample(table).rows.keys)

    def _ages(self, table: str) -> dict[str, Any] | None:
        rows = self._sample(table).rows
        found = self.source.ages(table, rows.keys)
        if found is None:
            return None
        return {"numbers": _rounded(found), "summary": summarize_numbers({"age": found})["age"]}

    def _neighbors(self, given: Parameters, on_progress: OnProgress) -> Any:
        table, row = (
            _text(given, "table"),
            self.source.row(_text(given, "table"), _text(given, "id")),
        )
        if not row["found"]:
            return {"found": False, "neighbors": []}
        k, metric = _number(given, "k", 10), given.get("metric", "cosine")
        found = self.source.neighbors(table, int(row["key"]), k, metric, on_progress)
        return {"found": True, "neighbors": found}

    def _measure(self, given: Parameters, on_progress: OnProgress) -> Any:
        table = _text(given, "table")
        return self.source.measure(table, self._sample(table), on_progress)

    def _difference(self, given: Parameters, on_progress: OnProgress) -> Any:
        table, top = _text(given, "table"), _number(given, "top", 20)
        if not 0 <= top <= _MAX_TOP:
            raise InvalidArgumentError(f"difference: found top={top}, expected 0 to {_MAX_TOP:,}")
        name = given.get("with")
        if name is not None:
            other = self.source.open_version(name)
            try:
                return self.difference(table, other, top, on_progress)
            finally:
                other.close()
        if self.other is None:
            raise InvalidArgumentError(
                "difference: found no version to compare with; give the parameter `with`, or start "
                "`sparring look` with --with"
            )
        return self.difference(table, self.other, top, on_progress)


def _describe(facts: TableFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in facts.__slots__}


def _count_differences(found: TableDifference) -> dict[str, Any]:
    before, after = found.num_rows
    return {
        "rows": [before, after],
        "created": found.num_created,
        "erased": found.num_erased,
        "changed": found.num_changed,
        "unchanged": after - found.num_created - found.num_changed,
        "moved_mean": found.sum_moved / found.num_moved if found.num_moved else None,
        "norm_mean": list(found.mean_norms),
        "norm_max": list(found.max_norms),
    }


def _text(given: Parameters, name: str) -> str:
    if not given.get(name):
        raise InvalidArgumentError(f"the request lacks the parameter {name!r}; add it")
    return given[name]


def _number(given: Parameters, name: str, default: int) -> int:
    text = given.get(name, str(default))
    try:
        return int(text) if len(text) < 12 else int("x")
    except ValueError:
        raise InvalidArgumentError(
            f"parameter {name}: found {text[:40]!r}, expected a whole number"
        ) from None


def _rounded(numbers: Any) -> list[float | None]:
    return [float(f"{each:.6g}") if math.isfinite(each) else None for each in numbers.tolist()]


def as_json_value(value: Any) -> Any:
    """Returns a value with None instead of numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): as_json_value(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_json_value(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
