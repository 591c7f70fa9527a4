"""A sketch of the ids of a table: how many keys occur how often."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from sparring.errors import ConfigError
from sparring_cli import DocumentModel, read_document
from sparring_plan.planning.costs.unique_keys import KeyBins

__all__ = ["Sketch", "read_column_ids", "read_sketch", "sketch_ids"]

_MAX_KEYS = 100_000_000
_EXACT_COUNT = 16
_BINS_PER_OCTAVE = 8
_RARE = 8
"""Keys that occur less often than this get estimated probabilities; see `Sketch.key_bins`."""
_ROWS_AT_ONCE = 1 << 20

Ids = NDArray[np.int64]


class Sketch(DocumentModel):
    """Histogram of the frequencies of keys among the ids of some data.

    A bin consists of its number of keys and their total number of ids. Keys with up to 16 ids have
    one bin per number of ids; above, bins are an eighth of a power of two wide.
    """

    ids: int = Field(gt=0)
    distinct: int = Field(gt=0)
    bins: list[tuple[int, int]] = Field(min_length=1)
    """Number of keys, and their total number of ids; the rarest keys first."""

    @model_validator(mode="after")
    def _adds_up(self) -> Sketch:
        keys, ids = (sum(each[part] for each in self.bins) for part in (0, 1))
        if any(each < 1 or of_bin < each for each, of_bin in self.bins):
            raise ValueError(
                "bins: each bin must have at least one key, and each key at least one id"
            )
        if (keys, ids) != (self.distinct, self.ids):
            raise ValueError(
                f"the bins contain {keys} keys and {ids} ids, but distinct is {self.distinct} and ids "
                f"is {self.ids}; create the sketch again"
            )
        return self

    def key_bins(self, num_rows: int) -> KeyBins:
        """Returns the key distribution of a table with `num_rows` rows.

        If the table has more keys than the data, the probabilities of unseen keys are estimated from
        the keys that occurred once (I. J. Good, "The population frequencies of species", Biometrika
        40, 1953): the unseen keys together get as many ids as there are such keys. In the same way,
        all keys with r ids together get r + 1 times the number of keys with r + 1 ids.

        Args:
            num_rows: Number of rows of the table.
        """
        counts = np.asarray([each for each, _ in self.bins], np.float64)
        ids = np.asarray([of_bin for _, of_bin in self.bins], np.float64)
        unseen = num_rows - self.distinct
        if unseen > 0:
            of_count = dict(zip(ids / counts, counts, strict=True))
            once = of_count.get(1.0, 0.0)
            if once and all(float(each) in of_count for each in range(1, _RARE + 2)):
                for index in range(_RARE):
                    ids[index] = (index + 2) * of_count[index + 2.0]
            else:
                ids *= 1 - once / self.ids
            if once:
                counts, ids = np.append(counts, unseen), np.append(ids, once)
        share = ids / ids.sum()
        return KeyBins(counts[None, :], (share / counts)[None, :])

    def to_yaml(self) -> str:
        """Returns the content of the file; equal ids give equal bytes."""
        bins = [f"- [{keys}, {ids}]" for keys, ids in self.bins]
        head = [f"ids: {self.ids}", f"distinct: {self.distinct}"]
        return "\n".join([*head, "bins:  # keys, and their ids together", *bins]) + "\n"


def read_sketch(path: str | Path) -> Sketch:
    """Reads a sketch written by `sparring plan sketch`.

    Raises:
        ConfigError: The file cannot be read, or is not a sketch: ``file:line:column: message``.
    """
    return read_document(path).as_model(Sketch)


def sketch_ids(chunks: Iterable[Ids]) -> Sketch:
    """Counts ids, exactly for each key.

    Args:
        chunks: Chunks of ids, each ``(n,)`` int64.

    Raises:
        ConfigError: There are no ids, or more than 100 million keys.

    Examples:
        >>> import numpy as np
        >>> from sparring_plan import sketch_ids
        >>> sketch = sketch_ids([np.array([7, 7, 8]), np.array([7, 9])])
        >>> sketch.distinct, sketch.bins
        (3, [(2, 2), (1, 3)])
    """
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for chunk in chunks:
        new_keys, new_counts = np.unique(chunk, return_counts=True)
        both, inverse = np.unique(np.concatenate([keys, new_keys]), return_inverse=True)
        joined = np.concatenate([counts, new_counts])
        keys, counts = both, np.bincount(inverse, joined, len(both)).astype(np.int64)
        if len(keys) > _MAX_KEYS:
            raise ConfigError(
                f"sketch: found more than {_MAX_KEYS:,} keys, too many to count in memory; use fewer "
                "ids (--ids)"
            )
    if not len(keys):
        raise ConfigError("sketch: the data contains no ids; specify a column with ids")
    octave = np.log2(np.maximum(counts, _EXACT_COUNT)) - np.log2(_EXACT_COUNT)
    places = np.where(
        counts <= _EXACT_COUNT,
        counts - 1,
        _EXACT_COUNT + np.ceil(octave * _BINS_PER_OCTAVE).astype(np.int64),
    )
    num_keys, num_ids = np.bincount(places), np.bincount(places, counts)
    bins = [(int(each), int(of)) for each, of in zip(num_keys, num_ids, strict=True) if each]
    return Sketch(ids=int(counts.sum()), distinct=len(keys), bins=bins)


def read_column_ids(
    path: str | Path, columns: Sequence[str], most: int | None = None
) -> Iterator[Ids]:
    """Yields the ids of some columns of a file in chunks.

    Supports Parquet (with pyarrow), CSV with a header, and ``.npy`` files, which have no columns.
    Lists of ids are flattened; missing values are skipped.

    Args:
        most: Maximum number of ids.

    Raises:
        ConfigError: The file cannot be read, a column is missing, or a column does not contain
            integers.
    """
    left = most
    for chunk in _chunks(Path(path), list(columns)):
        yield chunk[:left]
        if left is not None:
            left -= len(chunk)
            if left <= 0:
                return


def _chunks(path: Path, columns: Sequence[str]) -> Iterator[Ids]:
    readers = {".parquet": _parquet, ".csv": _csv, ".npy": _npy}
    if path.suffix not in readers:
        raise ConfigError(
            f"{path}: supported file types are {', '.join(readers)}, found "
            f"{path.suffix or 'no suffix'}; convert the file"
        )
    try:
        yield from readers[path.suffix](path, columns)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot read the file: {error.strerror or error}; check the path"
        ) from None


def _npy(path: Path, columns: Sequence[str]) -> Iterator[Ids]:
    if columns:
        raise ConfigError(f"{path}: an .npy file has no columns; remove {', '.join(columns)}")
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ConfigError(
            f"{path}: cannot read the array: {error}; save it with numpy.save"
        ) from None
    ids = ids.reshape(-1)
    for at in range(0, len(ids), _ROWS_AT_ONCE):
        yield _whole(path, "the array", ids[at : at + _ROWS_AT_ONCE])


def _csv(path: Path, columns: Sequence[str]) -> Iterator[Ids]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        _check_columns(path, columns, reader.fieldnames or [])
        held: list[int] = []
        for row in reader:
            for column in columns:
                for text in (row[column] or "").replace("|", " ").split():
                    try:
                        held.append(int(text))
                    except ValueError:
                        raise ConfigError(
                            f"{path}:{reader.line_num}: column {column} contains {text!r}, expected "
                            "an integer; convert text ids to integers"
                        ) from None
            if len(held) >= _ROWS_AT_ONCE:
                yield _whole(path, columns[0], held)
                held = []
        if held:
            yield _whole(path, columns[0], held)


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[Ids]:
    try:
        from pyarrow import ArrowInvalid, parquet
    except ImportError:
        raise ConfigError(
            f"{path}: reading Parquet needs pyarrow; run: pip install pyarrow"
        ) from None
    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise ConfigError(
            f"{path}: cannot read the file as Parquet: {error}; check that it is complete"
        ) from None
    _check_columns(path, columns, file.schema_arrow.names)
    for batch in file.iter_batches(columns=list(columns)):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            while hasattr(column, "flatten") and str(column.type).startswith(
                ("list", "large_list")
            ):
                column = column.flatten()  # noqa: PLW2901 (a list of lists is flattened twice)
            yield _whole(path, name, column.drop_null().to_numpy(zero_copy_only=False))


def _check_columns(path: Path, asked: Sequence[str], found: Sequence[str]) -> None:
    missing = [column for column in asked if column not in found]
    if missing or not asked:
        raise ConfigError(
            f"{path}: {'no column ' + missing[0] if missing else 'no column specified'}; use one of "
            f"{', '.join(found)}"
        )


def _whole(path: Path, name: str, values: object) -> Ids:
    try:
        array = np.asarray(values)
    except OverflowError:
        array = np.empty(0, object)
    if array.dtype.kind not in "iu":
        raise ConfigError(
            f"{path}: {name} contains {array.dtype}, expected 64-bit integers; convert the ids"
        )
    return array.astype(np.int64, copy=False)
