"""A sketch of the ids of a table: how many keys are asked for how often."""

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
"""Keys with fewer ids than this are judged by how many keys have one id more."""
_ROWS_AT_ONCE = 1 << 20

Ids = NDArray[np.int64]


class Sketch(DocumentModel):
    """Frequencies of keys among the ids of some data, as a histogram.

    A bin is how many keys it has, and how many ids these had together. Keys with up to 16 ids have
    a bin for each number of ids; of those above, bins are an eighth of a power of two wide.
    """

    ids: int = Field(gt=0)
    distinct: int = Field(gt=0)
    bins: list[tuple[int, int]] = Field(min_length=1)
    """Keys, and their ids together; the rarest keys first."""

    @model_validator(mode="after")
    def _adds_up(self) -> Sketch:
        keys, ids = (sum(each[part] for each in self.bins) for part in (0, 1))
        if any(each < 1 or of_bin < each for each, of_bin in self.bins):
            raise ValueError("bins: a bin has one key or more, and each key one id or more")
        if (keys, ids) != (self.distinct, self.ids):
            raise ValueError(
                f"the bins hold {keys} keys and {ids} ids, the head says {self.distinct} and {self.ids}"
            )
        return self

    def key_bins(self, num_rows: int) -> KeyBins:
        """The keys of a table of `num_rows`.

        Where the table has more keys than the data showed, the others get what the keys that were
        seen once tell of them (I. J. Good, "The population frequencies of species", Biometrika 40,
        1953): their ids together are as many as there are such keys, and r + 1 times the keys with
        r + 1 ids stand for those of the keys with r.
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
        """The sketch as a file: the same ids give the same bytes."""
        bins = [f"- [{keys}, {ids}]" for keys, ids in self.bins]
        head = [f"ids: {self.ids}", f"distinct: {self.distinct}"]
        return "\n".join([*head, "bins:  # keys, and their ids together", *bins]) + "\n"


def read_sketch(path: str | Path) -> Sketch:
    """Reads a sketch that `sparring plan sketch` has written.

    Raises:
        ConfigError: it cannot be read, or is no sketch: ``file:line:column: message``.
    """
    return read_document(path).as_model(Sketch)


def sketch_ids(chunks: Iterable[Ids]) -> Sketch:
    """Counts ids, each key exactly.

    Args:
        chunks: of ids, each ``(n,)`` int64.

    Raises:
        ConfigError: there are no ids, or more than 100 million keys.
    """
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for chunk in chunks:
        new_keys, new_counts = np.unique(chunk, return_counts=True)
        both, inverse = np.unique(np.concatenate([keys, new_keys]), return_inverse=True)
        joined = np.concatenate([counts, new_counts])
        keys, counts = both, np.bincount(inverse, joined, len(both)).astype(np.int64)
        if len(keys) > _MAX_KEYS:
            raise ConfigError(
                f"sketch: more than {_MAX_KEYS:,} keys, which are counted in memory; take fewer ids, as "
                "by --ids"
            )
    if not len(keys):
        raise ConfigError("sketch: the data has no ids; name a column with ids")
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
    """The ids of some columns of a file, in chunks: Parquet (by pyarrow), CSV with a header, or a
    ``.npy`` file, which has no columns. Lists of ids are taken apart; missing values are skipped.

    Args:
        most: ids to read.

    Raises:
        ConfigError: the file cannot be read, has no such column, or a column holds no whole numbers.
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
            f"{path}: a sketch reads {', '.join(readers)}, found {path.suffix or 'no ending'}; write the "
            "ids to one of these"
        )
    try:
        yield from readers[path.suffix](path, columns)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror or error}") from None


def _npy(path: Path, columns: Sequence[str]) -> Iterator[Ids]:
    if columns:
        raise ConfigError(f"{path}: an .npy file has no columns; leave {', '.join(columns)} out")
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}; save it by numpy.save") from None
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
                            f"{path}:{reader.line_num}: column {column} holds {text!r}, not a whole "
                            "number; turn ids of text into numbers first"
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
        raise ConfigError(f"{path}: Parquet is read by pyarrow; run: pip install pyarrow") from None
    try:
        file = parquet.ParquetFile(path)
    except ArrowInvalid as error:
        raise ConfigError(f"{path}: {error}") from None
    _check_columns(path, columns, file.schema_arrow.names)
    for batch in file.iter_batches(columns=list(columns)):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            while hasattr(column, "flatten") and str(column.type).startswith(
                ("list", "large_list")
            ):
                column = column.flatten()  # noqa: PLW2901 (a list of lists is taken apart twice)
            yield _whole(path, name, column.drop_null().to_numpy(zero_copy_only=False))


def _check_columns(path: Path, asked: Sequence[str], found: Sequence[str]) -> None:
    missing = [column for column in asked if column not in found]
    if missing or not asked:
        raise ConfigError(
            f"{path}: {'no column ' + missing[0] if missing else 'name one column or more'}; its columns "
            f"are {', '.join(found)}"
        )


def _whole(path: Path, name: str, values: object) -> Ids:
    try:
        array = np.asarray(values)
    except OverflowError:
        array = np.empty(0, object)
    if array.dtype.kind not in "iu":
        raise ConfigError(
            f"{path}: {name} holds {array.dtype}, not whole numbers of 64 bits; turn ids into such "
            "numbers first"
        )
    return array.astype(np.int64, copy=False)
