"""Dictionary from ids back to the hashed strings, in the folder of a run's snapshots.

    <snapshots.url>/strings/<feature>/<rank>-<token>-<number>.parquet      columns: id int64, string

Each rank writes the strings that it has not yet written. Other ranks, or earlier parts of the run, may
have written the same ones.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyarrow import parquet

from sparring.errors import DataError
from sparring_train.data.dataset import OpenRequest

__all__ = ["StringErasure", "StringWriter", "erase_strings", "find_strings", "make_string_writer"]

Ids = npt.NDArray[np.int64]

_FOLDER = "strings"
_UNFINISHED = ".unfinished"
_MAX_PENDING_STRINGS = 1 << 18


class StringWriter:
    """Writes each string once. Keeps 8 bytes per string in memory, and a buffer of new strings. Several
    threads may use it.

    Args:
        snapshots_url: folder of the run's snapshots.
        rank: this rank.
    """

    def __init__(self, snapshots_url: str, rank: int) -> None:
        self._system, path = fsspec.core.url_to_fs(snapshots_url)
        self._path = f"{path.rstrip('/')}/{_FOLDER}"
        self._prefix = f"{rank:05}-{secrets.token_hex(4)}"
        self._number = 0
        self._known: dict[str, _IdSet] = {}
        self._waiting: dict[str, list[tuple[Ids, Any]]] = {}
        self._num_waiting = 0
        self._lock = threading.Lock()

    def add(self, feature: str, ids: Ids, strings: Any) -> None:
        """Adds ids ``(n,)`` and an Arrow array of their n strings, except null and empty strings.

        Raises:
            DataError: the folder cannot be written to.
        """
        distinct, first = np.unique(ids, return_index=True)
        with self._lock:
            is_new = self._known.setdefault(feature, _IdSet()).add(distinct)
            if not is_new.any():
                return
            chosen = strings.take(pyarrow.array(first[is_new])).cast(pyarrow.large_binary())
            self._waiting.setdefault(feature, []).append((distinct[is_new], chosen))
            self._num_waiting += len(chosen)
            if self._num_waiting >= _MAX_PENDING_STRINGS:
                self._flush()

    def flush(self) -> None:
        """Writes the buffer.

        Raises:
            DataError: the folder cannot be written to.
        """
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        for feature, parts in self._waiting.items():
            table = pyarrow.table(
                {
                    "id": np.concatenate([ids for ids, _ in parts]),
                    "string": pyarrow.chunked_array([strings for _, strings in parts]),
                }
            )
            sizes = pc.binary_length(table["string"]).fill_null(0)
            folder = f"{self._path}/{quote(feature, safe='')}"
            name = f"{folder}/{self._prefix}-{self._number:06}.parquet"
            self._number += 1
            try:
                self._system.makedirs(folder, exist_ok=True)
                _replace(self._system, name, table.filter(pc.greater(sizes, 0)))
            except OSError as error:
                raise DataError(
                    f"data.dictionary: writing {name} failed: {error}; check free space and access "
                    "rights of the folder, then run again with --resume",
                    path=name,
                ) from error
        self._waiting, self._num_waiting = {}, 0


def make_string_writer(is_chosen: bool, request: OpenRequest) -> StringWriter | None:
    """Returns the writer of a run, or None if it stores no strings.

    Args:
        is_chosen: whether `data.dictionary` is true.
        request: properties of the run.

    Raises:
        DataError: the run has no folder for them.
    """
    if not is_chosen or request.is_saved:
        return None
    if request.snapshots_url is None:
        raise DataError(
            "data.dictionary: true stores strings in the folder of snapshots, but snapshots.url is null; "
            "set it to a folder"
        )
    return StringWriter(request.snapshots_url, request.rank)


def find_strings(url: str, feature: str, ids: Sequence[int] | Ids) -> list[str | None]:
    """Returns the strings of ids, in the same order; None for ids without a known string.

    Args:
        url: a snapshot of a run with `data.dictionary`, or the folder of its snapshots.
        feature: the column of strings.
        ids: ``(n,)``.

    Raises:
        DataError: the files cannot be read.
    """
    wanted = np.asarray(ids, np.int64)
    found: dict[int, str] = {}
    try:
        system, path = fsspec.core.url_to_fs(url)
        path = path.rstrip("/")
        for folder in (path, path.rpartition("/")[0]):
            below = f"{folder}/{_FOLDER}/{quote(feature, safe='')}"
            if system.isdir(below):
                break
        else:
            return [None] * len(wanted)
        for name in sorted(system.glob(f"{below}/*.parquet")):
            with system.open(name, "rb") as file:
                for batch in parquet.ParquetFile(file).iter_batches():
                    here = batch.column("id").to_numpy()
                    places = np.flatnonzero(np.isin(here, wanted))
                    strings = batch.column("string").take(pyarrow.array(places)).to_pylist()
                    texts = (each.decode("utf-8", "backslashreplace") for each in strings)
                    found.update(zip(here[places].tolist(), texts, strict=True))
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"reading strings of {feature!r} in {url} failed: {error}; check the URL and access rights"
        ) from error
    return [found.get(each) for each in wanted.tolist()]


@dataclass(frozen=True, slots=True)
class StringErasure:
    """Result of `erase_strings`."""

    folder: str
    """URL of the dictionary's folder; the folder may not exist."""
    num_strings: int = 0
    """Number of entries that were removed. Two ranks may have written the same string."""
    num_files: int = 0
    """Number of files that were rewritten or removed."""
    ids: set[int] = field(default_factory=set)
    """Ids that were removed."""


def erase_strings(
    url: str, ids: Ids, features: Sequence[str] | None = None, *, is_dry_run: bool = False
) -> StringErasure:
    """Removes ids and their strings from the dictionary of a run that is not running.

    Each file is replaced as a whole. If the call is interrupted, the remaining files are intact, and
    a second call removes the rest.

    Args:
        url: folder of the run's snapshots.
        ids: ids to remove, of shape ``(n,)``.
        features: columns to search; None: all columns.
        is_dry_run: whether to change nothing, and to return what would be removed.

    Raises:
        DataError: a file cannot be read or written.
    """
    system, path = fsspec.core.url_to_fs(url)
    root = f"{path.rstrip('/')}/{_FOLDER}"
    folder = system.unstrip_protocol(root)
    num_strings = num_files = 0
    removed: set[int] = set()
    try:
        columns = ["*"] if features is None else [quote(each, safe="") for each in features]
        for column in columns:
            for name in () if is_dry_run else system.glob(f"{root}/{column}/*{_UNFINISHED}"):
                system.rm_file(name)
            for name in sorted(system.glob(f"{root}/{column}/*.parquet")):
                with system.open(name, "rb") as file:
                    table = parquet.read_table(file)
                here = table["id"].to_numpy()
                is_kept = ~np.isin(here, ids)
                if is_kept.all():
                    continue
                removed |= set(here[~is_kept].tolist())
                if is_dry_run:
                    pass  # Only counts.
                elif is_kept.any():
                    _replace(system, name, table.filter(pyarrow.array(is_kept)))
                else:
                    system.rm_file(name)
                num_strings += int(np.count_nonzero(~is_kept))
                num_files += 1
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            f"erase: strings in {folder} cannot be read or replaced: {error}; fix the cause and run "
            "the command again",
            path=folder,
        ) from error
    return StringErasure(folder, num_strings, num_files, removed)


def _replace(system: Any, name: str, table: pyarrow.Table) -> None:
    """Writes to a temporary name first, so that readers never see an incomplete file."""
    unfinished = f"{name}{_UNFINISHED}"
    with system.open(unfinished, "wb") as file:
        parquet.write_table(table, file)
    system.mv(unfinished, name)


class _IdSet:
    """Set of ids, stored as sorted arrays, each at least twice as long as the next."""

    def __init__(self) -> None:
        self._arrays: list[Ids] = []

    def add(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Adds sorted, distinct ids, and returns a mask of the new ones."""
        is_new = np.ones(len(ids), np.bool_)
        for array in self._arrays:
            places = np.searchsorted(array, ids).clip(max=len(array) - 1)
            is_new &= array[places] != ids
        if is_new.any():
            self._arrays.append(ids[is_new])
        while len(self._arrays) > 1 and 2 * len(self._arrays[-1]) > len(self._arrays[-2]):
            last = self._arrays.pop()
            self._arrays[-1] = np.sort(np.concatenate([self._arrays[-1], last]))
        return is_new
