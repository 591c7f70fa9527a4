"""`ServedSource`: the page's view of a serving snapshot, which sparring-packed maps."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring.errors import (
    InvalidArgumentError,
    NotFoundError,
    SnapshotError,
    UnknownTableError,
    UnsupportedError,
)
from sparring_cli import MovedRow, TableDifference
from sparring_train.run.snapshot_rows import parse_candidate_keys
from sparring_train.view.numbers import Floats, compute_norms
from sparring_train.view.sample import SAMPLE_ROWS
from sparring_train.view.source import Keys, OnProgress, RowChunk, Source, TableFacts, TableSample

if TYPE_CHECKING:
    from sparring_packed import PackedTables

__all__ = ["ServedSource", "is_serving_snapshot"]

_NUM_PARTITIONS = 4096


class ServedSource(Source):
    """A serving snapshot, or the newest one in a folder.

    Args:
        url: Path of the serving snapshot or the folder.
    """

    kind = "serving snapshot"

    def __init__(self, url: str) -> None:
        import sparring_packed

        self._packed = sparring_packed
        self.tables: PackedTables = sparring_packed.open(url, verify="open")
        self.url = self.tables.snapshot_url
        version = self.tables.version
        self.step, self.version, self.time = version.step, version.hash, version.published
        self._manifests = self._read_chain()

    def close(self) -> None:
        self.tables.close()

    def _read_chain(self) -> dict[str, Any]:
        """Returns manifests by name, from the newest to the full snapshot."""
        path = Path(self.url)
        found = {path.name: self._packed.read_manifest(str(path))}
        while (base := next(reversed(found.values())).base) is not None:
            found[base.name] = self._packed.read_manifest(str(path.parent / base.name))
        return found

    def describe_tables(self) -> Sequence[TableFacts]:
        return [self._describe(name) for name in sorted(self.tables.tables)]

    def _describe(self, name: str) -> TableFacts:
        table = self.tables.tables[name]
        newest = next(iter(self._manifests.values()))
        is_delta = newest.base is not None

        def count(kind: str) -> int:
            files = [each for each in newest.files if (each.table, each.kind) == (name, kind)]
            return sum(each.num_keys for each in files)

        return TableFacts(
            name=name,
            dim=table.dim,
            dtype=table.dtype,
            state="",
            most_rows=table.num_rows,
            is_exact=not is_delta,
            size_bytes=sum(
                file.size_bytes
                for each in self._manifests.values()
                for file in each.files
                if file.table == name
            ),
            num_written=count("rows") if is_delta else None,
            num_erased=count("erased") if is_delta else None,
            numbers=("norm",),
        )

    def chain(self) -> Sequence[str]:
        return list(self._manifests)

    def check_table(self, table: str) -> None:
        if table not in self.tables.tables:
            raise UnknownTableError(
                f"serving snapshot {self.url} has no table {table!r}; choose one of its tables: "
                f"{', '.join(sorted(self.tables.tables)) or 'none'}",
                table=table,
            )

    def sample(self, table: str) -> TableSample:
        self.check_table(table)
        total = self.tables.tables[table].num_rows
        count = 1
        while count < _NUM_PARTITIONS and total * count < 2 * SAMPLE_ROWS * _NUM_PARTITIONS:
            count *= 2
        # Partitions are ranges of a hash of the key, so a few of them are a random sample.
        with self._packed.open(self.url, verify="open", partitions=(0, count)) as part:
            found = [*part.scan(table)]
        keys: Keys = np.concatenate([np.empty(0, np.int64), *(keys for keys, _ in found)])
        dim = self.tables.tables[table].dim
        rows = np.concatenate([np.empty((0, dim), np.float32), *(rows for _, rows in found)])
        facts = self.facts(table)
        num_rows = total if facts.is_exact else len(keys) * _NUM_PARTITIONS // count
        return TableSample(_rows(keys[:SAMPLE_ROWS], rows[:SAMPLE_ROWS]), num_rows, facts.is_exact)

    def chunks(self, table: str) -> Iterator[RowChunk]:
        self.check_table(table)
        for keys, rows in self.tables.scan(table):
            yield _rows(keys, rows)

    def ages(self, table: str, keys: Keys) -> Floats | None:
        return None

    def row(self, table: str, text: str) -> dict[str, Any]:
        self.check_table(table)
        candidates = parse_candidate_keys(text)
        for key in candidates:
            found = self.embedding(table, key)
            if found is not None:
                return {
                    "found": True,
                    "key": str(key),
                    "name": str(key),
                    "norm": float(compute_norms(found[None])[0]),
                    "parts": {"embedding": found.tolist()},
                    "state_method": "",
                    "state": [],
                }
        return {"found": False, "key": str(candidates[0]), "candidates": [*map(str, candidates)]}

    def embedding(self, table: str, key: int) -> npt.NDArray[Any] | None:
        self.check_table(table)
        found = self.tables.find(table, np.array([key], np.int64))
        return found.rows[0] if found.found[0] else None

    def names(self, table: str, keys: Keys) -> list[str]:
        return [str(each) for each in keys.tolist()]

    def versions(self) -> Sequence[Mapping[str, Any]]:
        found = []
        for path in Path(self.url).parent.iterdir():
            try:
                manifest = self._packed.read_manifest(str(path))
            except SnapshotError:
                continue  # Another kind of folder, or a version that is being written.
            is_shown = path.name == Path(self.url).name
            shown = {"name": path.name, "step": manifest.step, "is_shown": is_shown}
            found.append((manifest.order, path.name, shown))
        return [shown for *_, shown in sorted(found, key=lambda each: each[:2])]

    def open_version(self, name: str) -> Source:
        if name not in {each["name"] for each in self.versions()}:
            raise NotFoundError(
                f"comparison with version {name!r}: found no such serving snapshot in "
                f"{Path(self.url).parent}; choose one of the listed versions"
            )
        return ServedSource(str(Path(self.url).parent / name))

    def previous(self) -> str | None:
        names = [each["name"] for each in self.versions()]
        place = names.index(Path(self.url).name)
        return names[place - 1] if place else None

    def compare(
        self, other: Source, table: str, top: int, on_progress: OnProgress
    ) -> TableDifference:
        if not isinstance(other, ServedSource):
            raise InvalidArgumentError(
                f"comparison: {other.url} is a {other.kind}, but {self.url} is a {self.kind}; choose "
                "two of the same kind"
            )
        dims = [each.facts(table).dim for each in (other, self)]
        if dims[0] != dims[1]:
            raise InvalidArgumentError(
                f"comparison of table {table!r}: found dim {dims[0]} in {other.url} and {dims[1]} in "
                f"{self.url}, expected equal dims; choose versions of one run"
            )
        found = TableDifference(table)
        num_common = 0
        for chunk in self._tracked(table, on_progress):
            before = other.tables.find(table, chunk.keys)
            num_common += int(before.found.sum())
            _add_chunk(found, chunk, before.rows, before.found, top)
        found.num_rows[0] = _add_norms(found, other, table)
        found.num_created = found.num_rows[1] - num_common
        found.num_erased = found.num_rows[0] - num_common
        found.num_changed = found.num_moved
        found.most_moved.sort(reverse=True)
        return found

    def history(self, table: str, text: str) -> Sequence[Mapping[str, Any]]:
        raise UnsupportedError(
            "the history of a row is in the snapshots of the run, not in serving snapshots; open the "
            "run's folder with `sparring look`"
        )


def _rows(keys: Keys, rows: npt.NDArray[Any]) -> RowChunk:
    return RowChunk(keys, rows, {"norm": compute_norms(rows)})


def _add_chunk(
    found: TableDifference,
    chunk: RowChunk,
    before: npt.NDArray[Any],
    is_common: npt.NDArray[np.bool_],
    top: int,
) -> None:
    norms = chunk.numbers["norm"]
    found.num_rows[1] += len(norms)
    finite = norms[np.isfinite(norms)]
    found.sum_norms[1] += float(finite.sum())
    found.max_norms[1] = max(found.max_norms[1], float(finite.max(initial=0.0)))
    keys, old = chunk.keys[is_common], before[is_common].astype(np.float64)
    moved = np.linalg.norm(chunk.embeddings[is_common].astype(np.float64) - old, axis=1)
    moved[np.isnan(moved)] = np.inf
    found.num_moved += int(np.count_nonzero(moved))
    found.sum_moved += float(moved[np.isfinite(moved)].sum())
    most = np.argsort(moved)[::-1][:top]
    after = norms[is_common]
    found.most_moved = heapq.nlargest(
        top,
        [
            *found.most_moved,
            *(
                MovedRow(
                    float(moved[each]),
                    int(keys[each]),
                    (float(np.linalg.norm(old[each])), float(after[each])),
                )
                for each in most
                if moved[each] != 0
            ),
        ],
    )


def _add_norms(found: TableDifference, source: ServedSource, table: str) -> int:
    """Adds the norms of the older version, and returns its number of rows."""
    num_rows = 0
    for chunk in source.chunks(table):
        finite = chunk.numbers["norm"][np.isfinite(chunk.numbers["norm"])]
        found.sum_norms[0] += float(finite.sum())
        found.max_norms[0] = max(found.max_norms[0], float(finite.max(initial=0.0)))
        num_rows += len(chunk.keys)
    return num_rows


def is_serving_snapshot(url: str) -> bool:
    """Returns whether a local folder is a serving snapshot, or contains one."""
    import sparring_packed

    path = Path(url)
    for each in (path, *(sorted(path.iterdir()) if path.is_dir() else ())):
        try:
            sparring_packed.read_manifest(str(each))
        except SnapshotError:
            continue
        return True
    return False
