"""`TrainedSource`: the page's view of a training snapshot and of the run that saved it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import PluginManager, ScanChunk, Snapshot, scan_rows
from sparring.adapter import locate, open_snapshots
from sparring.contracts import read_embeddings, read_state
from sparring.errors import ConfigError, InvalidArgumentError, NotFoundError
from sparring_cli import TableDifference, compare_tables, read_embedding_parts
from sparring_train.run.history import list_versions, read_time
from sparring_train.run.same_run import RUN
from sparring_train.run.snapshot_rows import find_embedding, parse_candidate_keys
from sparring_train.view.numbers import Floats, compute_norms
from sparring_train.view.sample import sample_rows
from sparring_train.view.source import Keys, OnProgress, RowChunk, Source, TableFacts, TableSample

__all__ = ["TrainedSource"]

_VISITS = "visits"
"""State with the last step of each key of tables whose rows expire."""


class TrainedSource(Source):
    """A training snapshot.

    Args:
        snapshot: The opened snapshot.
        manager: Finds the kinds of data, for the strings of ids.
    """

    kind = "snapshot"

    def __init__(self, snapshot: Snapshot, manager: PluginManager) -> None:
        self.snapshot = snapshot
        self.url, self.step, self.version = snapshot.url, snapshot.step, snapshot.manifest_hash
        self.time = read_time(snapshot)
        self.has_ages = _VISITS in snapshot.state_names()
        self._manager = manager
        self._lock = threading.Lock()
        self._visits: dict[str, tuple[Keys, Keys] | None] = {}

    def describe_tables(self) -> Sequence[TableFacts]:
        return [self._describe(name) for name in sorted(self.snapshot.tables)]

    def _describe(self, name: str) -> TableFacts:
        snapshot, described = self.snapshot, self.snapshot.tables[name]
        files = [entry for each in snapshot.chain for entry in each.files(name)]
        own = {kind: _count_keys(snapshot, name, kind) for kind in ("rows", "erased")}
        state = f"{described.state_width} × {described.state_method}".removesuffix(" × ")
        is_delta = snapshot.base is not None
        return TableFacts(
            name=name,
            dim=described.dim,
            dtype=described.dtype,
            state=state if described.state_width else "",
            most_rows=sum(_count_keys(each, name, "rows") for each in snapshot.chain),
            is_exact=not is_delta,
            size_bytes=sum(entry.size_bytes for entry in files),
            num_written=own["rows"] if is_delta else None,
            num_erased=own["erased"] if is_delta else None,
            numbers=("norm", *(["score"] if described.has_scores else [])),
        )

    def chain(self) -> Sequence[str]:
        return [each.name for each in self.snapshot.chain]

    def close(self) -> None:
        """Does nothing, because files are open only while they are read."""

    def check_table(self, table: str) -> None:
        self.snapshot.check_table(table)

    def sample(self, table: str) -> TableSample:
        found = sample_rows(self.snapshot, table)
        return TableSample(self._rows(table, found.chunk), found.num_rows, found.is_exact)

    def chunks(self, table: str) -> Iterator[RowChunk]:
        for chunk in scan_rows(self.snapshot, table):
            yield self._rows(table, chunk)

    def _rows(self, table: str, chunk: ScanChunk) -> RowChunk:
        described = self.snapshot.tables[table]
        part = read_embedding_parts(self.snapshot, table, described.dim)["embedding"]
        embeddings = np.array(read_embeddings(described.config, chunk.rows))[:, part]
        numbers = {"norm": compute_norms(embeddings)}
        if described.has_scores:
            numbers["score"] = chunk.scores.astype(np.float64)
        return RowChunk(chunk.keys, embeddings, numbers)

    def ages(self, table: str, keys: Keys) -> Floats | None:
        visits = self._read_visits(table)
        if visits is None:
            return None
        known, steps = visits
        places = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
        found: Floats = np.full(len(keys), np.nan)
        if len(known):
            is_known = known[places] == keys
            found[is_known] = self.step - steps[places[is_known]]
        return found

    def _read_visits(self, table: str) -> tuple[Keys, Keys] | None:
        """Returns the keys of a table, ascending, and their last steps; None if they are not stored."""
        with self._lock:
            if table not in self._visits:
                self._visits[table] = self._load_visits(table)
            return self._visits[table]

    def _load_visits(self, table: str) -> tuple[Keys, Keys] | None:
        found = [
            self.snapshot.state(_VISITS, rank).arrays
            for rank in range(self.snapshot.world_size)
            if _VISITS in self.snapshot.state_names(rank)
        ]
        having = [each for each in found if f"keys.{table}" in each]
        if not having:
            return None
        keys: Keys = np.concatenate([each[f"keys.{table}"] for each in having])
        steps: Keys = np.concatenate([each[f"steps.{table}"] for each in having])
        order = np.argsort(keys)
        return keys[order], steps[order]

    def row(self, table: str, text: str) -> dict[str, Any]:
        # Imported here and below, because they import pyarrow, and the page opens without it.
        from sparring_train.run.row_changes import find_row

        self.check_table(table)
        candidates = parse_candidate_keys(text)
        for key in candidates:
            found = find_row(self.snapshot, table, key)
            if found is not None:
                return self._describe_row(table, key, found)
        return {"found": False, "key": str(candidates[0]), "candidates": [*map(str, candidates)]}

    def _describe_row(self, table: str, key: int, found: ScanChunk) -> dict[str, Any]:
        described = self.snapshot.tables[table]
        values = np.array(read_embeddings(described.config, found.rows))[0]
        parts = read_embedding_parts(self.snapshot, table, described.dim)
        keys = np.array([key], np.int64)
        told: dict[str, Any] = {
            "found": True,
            "key": str(key),
            "name": self.names(table, keys)[0],
            "norm": float(compute_norms(values[None, parts["embedding"]])[0]),
            "parts": {name: values[where].tolist() for name, where in parts.items()},
            "state_method": described.state_method,
            "state": read_state(described.config, found.rows)[0].tolist(),
        }
        if described.has_scores:
            told["score"] = int(found.scores[0])
        return told

    def embedding(self, table: str, key: int) -> npt.NDArray[Any] | None:
        self.check_table(table)
        return find_embedding(self.snapshot, table, key)

    def names(self, table: str, keys: Keys) -> list[str]:
        if RUN not in self.snapshot.state_names(0):
            return [str(each) for each in keys.tolist()]
        from sparring_train.recommend.names_of_ids import names_of_ids
        from sparring_train.run.saved_run import read_run_config

        try:
            config = read_run_config(self.snapshot, (), self._manager)
        except ConfigError:
            # For example a model of a package that is not installed here. Rows can be shown anyway.
            return [str(each) for each in keys.tolist()]
        return [str(each) for each in names_of_ids(self.snapshot, config, table, keys)]

    def versions(self) -> Sequence[Mapping[str, Any]]:
        return [
            {"name": each.name, "step": each.step, "is_shown": each.name == self.snapshot.name}
            for each in open_snapshots(self._root())
        ]

    def _root(self) -> str:
        return locate(self.url)[0].url

    def open_version(self, name: str) -> Source:
        for each in open_snapshots(self._root()):
            if each.name == name:
                return TrainedSource(each, self._manager)
        raise NotFoundError(
            f"comparison with version {name!r}: found no such snapshot in {self._root()}; choose one of "
            "the listed versions"
        )

    def previous(self) -> str | None:
        versions = list_versions(self.url)
        return versions[-2].name if len(versions) > 1 else None

    def compare(
        self, other: Source, table: str, top: int, on_progress: OnProgress
    ) -> TableDifference:
        if not isinstance(other, TrainedSource):
            raise InvalidArgumentError(
                f"comparison: {other.url} is a {other.kind}, but {self.url} is a {self.kind}; choose "
                "two of the same kind"
            )
        for each in (self, other):
            each.check_table(table)
        return compare_tables(other.snapshot, self.snapshot, table, top, on_progress)

    def history(self, table: str, text: str) -> Sequence[Mapping[str, Any]]:
        from sparring_train.run.row_changes import describe_change, find_changes

        for key in parse_candidate_keys(text):
            changes, _ = find_changes(self.url, table, key)
            if changes:
                return [describe_change(each) for each in changes]
        return []


def _count_keys(snapshot: Snapshot, table: str, kind: str) -> int:
    return sum(
        entry.num_keys for entry in snapshot.files(table, kind) if not (entry.columns or (0, 0))[0]
    )
