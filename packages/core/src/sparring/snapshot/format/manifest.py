"""The manifest of a snapshot, and a rank's part of it; bounds, hashes and table descriptions in it.

JSON that carries its own hash:

{
 "format": "sparring snapshot",
 …
 "hash": "0123456789abcdef0123456789abcdef"     of all bytes before this line
}
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparring._version import __version__
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.tables.initializers import Initializer
from sparring.contracts.tables.table import DTYPES, TableConfig
from sparring.errors import InvalidArgumentError

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_DIGITS",
    "Base",
    "FileEntry",
    "FileHashes",
    "HEADER_BYTES",
    "JSON",
    "MANIFEST_BYTES",
    "MANIFEST_NAME",
    "MAX_CHAIN",
    "Manifest",
    "NUM_PARTITIONS",
    "NewerFormatError",
    "OtherFormatError",
    "Part",
    "SEGMENT_BYTES",
    "STATE_HEADER_BYTES",
    "TableDescription",
    "TableEntry",
    "VERSION",
    "block_hash",
    "decode_text",
    "encode_text",
    "hash_blocks",
    "no_pause",
    "text_hash",
    "reject_repeated_keys",
]

# Bounds are checked before memory is allocated, so a hostile snapshot costs no more than a small one.
# The writer stays well within them.

VERSION = 1
"""Of the format. Readers refuse any other."""

NUM_PARTITIONS = 4096
"""Of a table's key space; `sparring.kernels.functions.partition` gives a key's."""

BLOCK_BYTES = 1 << 20
"""Each block of this size of a file has a hash of its own: where damage is looked for."""

MANIFEST_NAME = "manifest.json"

MANIFEST_BYTES = 256 << 20
"""The longest manifest that is read. A terabyte of rows needs about 20 MiB."""

HEADER_BYTES = 1 << 20
"""The longest header of a file of rows or erased keys that is read."""

STATE_HEADER_BYTES = 64 << 20
"""The longest header of a file of state that is read; it holds the state's values."""

SEGMENT_BYTES = 64 << 20
"""The longest segment of a file of rows that is read: so much memory reading needs."""

MAX_CHAIN = 1000
"""The most deltas over one full snapshot."""


BLOCK_DIGITS = 16
"""Hexadecimal digits of the hash of a block."""

ReadInto = Callable[[int, memoryview], None]
"""Fills the view with the bytes of a file that begin at an offset."""


@dataclass(frozen=True, slots=True)
class FileHashes:
    """Expected hashes of a file's bytes.

    Args:
        size_bytes: of the file.
        whole: xxh3-128 of all bytes, 32 hexadecimal digits.
        blocks: xxh3-64 of each block of `BLOCK_BYTES`, 16 digits each, one after the other.
    """

    size_bytes: int
    whole: str
    blocks: str


class NewerFormatError(ValueError):
    """A manifest of a later format. From 2 on, `read_by` in it is the first release that reads it."""

    def __init__(self, version: int, read_by: object) -> None:
        release = "a later release of sparring"
        if isinstance(read_by, str) and _RELEASE.match(read_by):
            release = f'sparring>={read_by}: pip install "sparring>={read_by}"'
        super().__init__(
            f"it has format {version}, and this is sparring {__version__}, which reads format "
            f"{VERSION}; use {release}"
        )


class OtherFormatError(ValueError):
    """A whole manifest of something else than a snapshot."""


_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}\Z")


def text_hash(data: bytes) -> str:
    """xxh3-128, 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def block_hash(data: memoryview) -> str:
    """xxh3-64, 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data)


def no_pause() -> None:
    """Does not pause."""


def hash_blocks(
    read_into: ReadInto, size_bytes: int, pause: Callable[[], None] = no_pause
) -> FileHashes:
    """The hashes of a file, in one pass over it.

    Args:
        read_into: reads the file.
        size_bytes: of the file.
        pause: called after each block.
    """
    whole = xxhash.xxh3_128()
    blocks = []
    buffer = memoryview(bytearray(min(BLOCK_BYTES, size_bytes)))
    for begin in range(0, size_bytes, BLOCK_BYTES):
        block = buffer[: min(BLOCK_BYTES, size_bytes - begin)]
        read_into(begin, block)
        whole.update(block)
        blocks.append(block_hash(block))
        pause()
    return FileHashes(size_bytes, whole.hexdigest(), "".join(blocks))


JSON = Any
"""None, bool, int, float, str, and lists and string-keyed mappings of these."""


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table, as far as its rows are concerned.

    Args:
        name: of the table.
        dim: elements of an embedding.
        dtype: of embeddings.
        state_width: elements of optimizer state behind each embedding.
        state_method: the update method of that state; empty where unknown.
        has_scores: whether rows come with scores.
        extra: what else is worth keeping. `of` puts the seed, the initializer and the placement
            there, because rows that were never written are computed from them.
    """

    name: str
    dim: int
    dtype: str = "float32"
    state_width: int = 0
    state_method: str = ""
    has_scores: bool = False
    extra: Mapping[str, JSON] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        table: TableConfig,
        *,
        has_scores: bool = False,
        extra: Mapping[str, JSON] | None = None,
    ) -> TableDescription:
        """The description of `table`.

        Args:
            table: as declared, with its state.
            has_scores: whether the storage keeps scores that are to be saved.
            extra: added to the seed, the initializer and the placement.
        """
        assert isinstance(table.initializer, Initializer)  # TableConfig sees to it
        known = {
            "seed": table.seed,
            "initializer": table.initializer.as_dict(),
            "placement": table.placement,
        }
        return cls(
            table.name,
            table.dim,
            table.dtype,
            table.state_width,
            table.state_method,
            has_scores,
            known | dict(extra or {}),
        )

    @property
    def config(self) -> TableConfig:
        """A table of the same rows, with the default initializer; it gives their layout.

        Raises:
            InvalidArgumentError: there can be no such table.
        """
        return TableConfig(
            self.name,
            self.dim,
            self.dtype,
            # Of every legal dim and dtype it stays within the range.
            initializer="zeros",
            state_width=self.state_width,
            state_method=self.state_method,
        )

    @property
    def width(self) -> int:
        """Elements of the table's dtype in a whole row."""
        return self.config.width

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of arrays of rows."""
        return self.config.numpy_dtype

    def check(self, table: TableConfig) -> None:
        """Refuses a table whose rows these cannot be.

        Raises:
            InvalidArgumentError: naming what differs, in the snapshot and in the table.
        """
        asked, found = table, self.config
        differing = [
            f"{name} {getattr(found, name)!r} in the snapshot, {getattr(asked, name)!r} declared"
            for name in ("name", "dim", "dtype")
            if getattr(found, name) != getattr(asked, name)
        ]
        if found.has_other_state(asked):
            differing.append(
                f"state of {found.state_width} elements of {found.state_method or 'an unknown method'!r} "
                f"in the snapshot, {asked.state_width} of {asked.state_method or 'an unknown method'!r} "
                "declared"
            )
        if differing:
            raise InvalidArgumentError(
                f"snapshot of table {self.name!r} does not fit the table that is declared: "
                f"{'; '.join(differing)}. Declare it as it was saved, or load another snapshot",
                table=self.name,
                differing=tuple(differing),
            )


_TAIL = re.compile(rb'\n "hash": "([0-9a-f]{32})"\n}\n\Z')
_TAIL_BYTES = len(b'\n "hash": ""\n}\n') + 32

_Count = Annotated[int, Field(ge=0, lt=2**62)]
_Rank = Annotated[int, Field(ge=0, lt=2**31)]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
# No path: no separator, no leading dot.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Base(_Entry):
    """The snapshot that a delta is over: a sibling, with the hash of its manifest."""

    name: _Name
    hash: _Hash


class TableEntry(_Entry):
    """See `TableDescription`."""

    name: str
    dim: int
    dtype: Literal["float32", "float64", "float16", "bfloat16"]
    state_width: int
    state_method: str
    has_scores: bool
    extra: dict[str, Any]

    @classmethod
    def of(cls, table: TableDescription) -> TableEntry:
        assert table.dtype in DTYPES
        return cls(
            name=table.name,
            dim=table.dim,
            dtype=table.dtype,  # type: ignore[arg-type]
            state_width=table.state_width,
            state_method=table.state_method,
            has_scores=table.has_scores,
            extra=dict(table.extra),
        )

    @property
    def description(self) -> TableDescription:
        return TableDescription(
            self.name,
            self.dim,
            self.dtype,
            self.state_width,
            self.state_method,
            self.has_scores,
            self.extra,
        )

    @model_validator(mode="after")
    def _check(self) -> TableEntry:
        # The layout of a table checks names and sizes; its error is a ValueError.
        _ = self.description.config
        return self


class FileEntry(_Entry):
    """One data file.

    Args:
        name: in the snapshot's folder.
        kind: `rows` and `erased` belong to a table, `state` has a name of its own.
        rank: that wrote it.
        table: whose rows or keys it holds; empty for state.
        state: the state's name; empty for rows and erased keys.
        partitions: half-open range that its keys are of.
        columns: half-open range of embeddings that its rows have, and of each array of state; None: all.
            Of erased keys: those that lost these columns.
        num_keys: rows, or erased keys.
        size_bytes: of the file.
        hash: xxh3-128 of the file.
        blocks: xxh3-64 of each block of 1 MiB, one after the other.
    """

    name: _Name
    kind: Literal["rows", "erased", "state"]
    rank: _Rank
    table: str = ""
    state: str = ""
    partitions: tuple[int, int] = Field(default=(0, NUM_PARTITIONS), strict=False)
    columns: tuple[int, int] | None = Field(default=None, strict=False)
    num_keys: _Count = 0
    size_bytes: _Count
    hash: _Hash
    blocks: Annotated[str, Field(pattern=r"^[0-9a-f]*$")]

    @model_validator(mode="after")
    def _check(self) -> FileEntry:
        if (self.kind == "state") == bool(self.table) or (self.kind == "state") != bool(self.state):
            raise ValueError(f"file {self.name!r} of kind {self.kind} must name what it is of")
        if not 0 <= self.partitions[0] < self.partitions[1] <= NUM_PARTITIONS:
            raise ValueError(f"file {self.name!r} has no legal range of partitions")
        if self.columns is not None and (
            self.kind == "state" or not 0 <= self.columns[0] < self.columns[1]
        ):
            raise ValueError(f"file {self.name!r} has no legal range of columns")
        if len(self.blocks) != BLOCK_DIGITS * -(-self.size_bytes // BLOCK_BYTES):
            raise ValueError(f"file {self.name!r} has not as many hashes as blocks")
        return self

    @property
    def block(self) -> ColumnBlock | None:
        """Its columns; None: all."""
        return None if self.columns is None else ColumnBlock(*self.columns)


class _Contents(_Entry):
    version: Literal[1] = 1
    step: _Count
    world_size: Annotated[int, Field(ge=1, lt=2**31)]
    base: Base | None = None
    tables: list[TableEntry]
    files: list[FileEntry]

    @model_validator(mode="after")
    def _check(self) -> _Contents:
        tables = {table.name: table for table in self.tables}
        if len(tables) != len(self.tables):
            raise ValueError("a table is listed twice")
        if len({file.name for file in self.files}) != len(self.files):
            raise ValueError("a file is listed twice")
        states = [(file.state, file.rank) for file in self.files if file.kind == "state"]
        if len(set(states)) != len(states):
            raise ValueError("a rank's state is listed twice")
        for file in self.files:
            if file.table and file.table not in tables:
                raise ValueError(f"file {file.name!r} is of table {file.table!r}, not listed")
            if file.columns is not None:
                _check_columns(file, tables[file.table].description)
            if file.rank >= self.world_size:
                raise ValueError(f"file {file.name!r} is of rank {file.rank}, not of this world")
        return self


def _check_columns(file: FileEntry, table: TableDescription) -> None:
    """Refuses columns that a table does not have, or that its state does not go by."""
    assert file.columns is not None
    if file.columns[1] > table.dim or not ColumnBlock.divides_state(table.config):
        raise ValueError(
            f"file {file.name!r} is of columns {file.columns} of table {table.name!r}, which has "
            f"{table.dim}, and {table.state_width} elements of state"
        )


class Manifest(_Contents):
    """All that a committed snapshot holds."""

    format: Literal["sparring snapshot"] = "sparring snapshot"


class Part(_Contents):
    """One rank's files, in the staging folder; gone once the snapshot is committed."""

    format: Literal["sparring snapshot part"] = "sparring snapshot part"
    token: str
    rank: _Rank


_Text = TypeVar("_Text", Manifest, Part)


def encode_text(contents: Manifest | Part) -> bytes:
    """The file, a line for each table and file, its hash at the end."""
    plain = contents.model_dump(mode="json")
    for file in plain["files"]:
        if file["columns"] is None:  # as manifests were before there were columns
            del file["columns"]
    lines = ["{"]
    for name in sorted(plain, key=lambda each: (each in {"tables", "files"}, each != "format")):
        if name in {"tables", "files"}:
            entries = [
                f"  {json.dumps(each, separators=(',', ':'), allow_nan=False)}"
                for each in plain[name]
            ]
            lines += [f' "{name}": [', ",\n".join(entries), " ],"]
        else:
            lines.append(f' "{name}": {json.dumps(plain[name])},')
    body = "\n".join(lines).encode()
    return body + b'\n "hash": "%b"\n}\n' % text_hash(body).encode()


def decode_text(text: bytes, kind: type[_Text]) -> tuple[_Text, str]:
    """Decodes the text of `encode_text`; returns the value and its hash.

    Raises:
        ValueError: damaged, or not such a file; the text says why.
    """
    tail = _TAIL.search(text, max(0, len(text) - _TAIL_BYTES))
    if tail is None:
        raise ValueError("it does not end with its hash: cut off, or no manifest")
    found, expected = text_hash(text[: tail.start()]), tail[1].decode()
    if found != expected:
        raise ValueError(f"its bytes hash to {found}, it says {expected}")
    try:
        plain = json.loads(text.decode(), object_pairs_hook=reject_repeated_keys)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(plain, dict):
        raise ValueError("it is no JSON object")
    plain.pop("hash", None)
    wanted = kind.model_fields["format"].default
    if plain.get("format", wanted) != wanted:
        raise OtherFormatError(f"it is a {plain['format']!r}, asked was a {wanted!r}")
    version = plain.get("version")
    if isinstance(version, int) and version > VERSION:
        raise NewerFormatError(version, plain.get("read_by"))
    if version != VERSION:
        raise ValueError(f"its format has version {version!r}, this reads version {VERSION}")
    try:
        return kind.model_validate(plain), expected
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The JSON object of these pairs; ValueError where a name is given twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name is given twice")
    return made
