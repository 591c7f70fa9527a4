"""Manifest of a snapshot and part file of a rank: bounds, hashes and descriptions of tables.

Both are JSON files that end with their own hash:

{
 "format": "sparring snapshot",
 …
 "hash": "0123456789abcdef0123456789abcdef"     hash of all bytes before this line
}

The file is long because it contains all types of the format, their validation and their encoding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
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
# Files of the writer are much smaller than these bounds.

VERSION = 1
"""Version of the format. Readers reject any other version."""

NUM_PARTITIONS = 4096
"""Number of partitions of the key space; see `sparring.kernels.functions.partition`."""

BLOCK_BYTES = 1 << 20
"""Size of the blocks of a file that have separate hashes, by which damage is located."""

MANIFEST_NAME = "manifest.json"

MANIFEST_BYTES = 256 << 20
"""Maximum size of a manifest. A terabyte of rows needs about 20 MiB."""

HEADER_BYTES = 1 << 20
"""Maximum size of the header of a file of rows or erased keys."""

STATE_HEADER_BYTES = 64 << 20
"""Maximum size of the header of a file of state, which contains the values of the state."""

SEGMENT_BYTES = 64 << 20
"""Maximum size of a segment of a file of rows; reading needs this much memory."""

MAX_CHAIN = 1000
"""Maximum number of deltas over one full snapshot."""


BLOCK_DIGITS = 16
"""Number of hexadecimal digits of the hash of a block."""

ReadInto = Callable[[int, memoryview], None]
"""Fills the view with the bytes of a file from an offset."""


@dataclass(frozen=True, slots=True)
class FileHashes:
    """Size and hashes of a file.

    Args:
        size_bytes: Size of the file.
        whole: XXH3-128 of all bytes, 32 hexadecimal digits.
        blocks: XXH3-64 of each block of `BLOCK_BYTES`, 16 hexadecimal digits each, concatenated.
    """

    size_bytes: int
    whole: str
    blocks: str


class NewerFormatError(ValueError):
    """The manifest has a later format. From format 2, `read_by` names the first release that reads it."""

    def __init__(self, version: int, read_by: object) -> None:
        release = "a later release of sparring"
        if isinstance(read_by, str) and _RELEASE.match(read_by):
            release = f'sparring>={read_by}: pip install "sparring>={read_by}"'
        super().__init__(
            f"it has format {version}, but sparring {__version__} reads only format {VERSION}; use "
            f"{release}"
        )


class OtherFormatError(ValueError):
    """The file is an undamaged manifest of something other than a snapshot."""


_RELEASE = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,3}\Z")


def text_hash(data: bytes) -> str:
    """Returns the XXH3-128 of `data` as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def block_hash(data: memoryview) -> str:
    """Returns the XXH3-64 of `data` as 16 hexadecimal digits."""
    return xxhash.xxh3_64_hexdigest(data)


def no_pause() -> None:
    """Does nothing; the default for `pause`."""


def hash_blocks(
    read_into: ReadInto, size_bytes: int, pause: Callable[[], None] = no_pause
) -> FileHashes:
    """Computes the hashes of a file in one pass over it.

    Args:
        read_into: Reads a range of the file.
        size_bytes: Size of the file.
        pause: Called after each block.
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
    """Description of the rows of a table in a snapshot.

    Args:
        name: Name of the table.
        dim: Elements per embedding.
        dtype: Dtype of embeddings.
        state_width: Elements of optimizer state after each embedding.
        state_method: Update method that the state belongs to; empty if unknown.
        has_scores: Whether the snapshot contains a score per row.
        extra: Additional values. `of` stores the seed, the initializer and the placement, because rows
            that were never written are computed from them.

    Examples:
        >>> from sparring import TableConfig, TableDescription
        >>> TableDescription.of(TableConfig("item", dim=16, initializer="zeros", seed=5)).extra
        {'seed': 5, 'initializer': {'kind': 'zeros'}, 'placement': 'sharded'}
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
        """Creates the description of `table`.

        Args:
            table: Declaration of the table, with its state.
            has_scores: Whether the storage has scores to save.
            extra: Values to add to the seed, the initializer and the placement.
        """
        assert isinstance(table.initializer, Initializer)  # TableConfig converts it
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
        """Table with the same layout of rows. Its initializer is not the one of the saved table.

        Raises:
            InvalidArgumentError: The description is not valid for a table.
        """
        return _make_config(self.name, self.dim, self.dtype, self.state_width, self.state_method)

    @property
    def width(self) -> int:
        """Elements per whole row."""
        return self.config.width

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy dtype of rows."""
        return self.config.numpy_dtype

    def check(self, table: TableConfig) -> None:
        """Checks that the rows fit a declared table.

        Args:
            table: Declaration of the table, with the state of its optimizer.

        Raises:
            InvalidArgumentError: They do not. The message lists the differing values of the snapshot and
                of the table.
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
                f"snapshot of table {self.name!r} does not fit the declared table: "
                f"{'; '.join(differing)}. Declare the table as it was saved, or load another snapshot",
                table=self.name,
                differing=tuple(differing),
            )


@lru_cache(maxsize=1024, typed=True)
def _make_config(
    name: str, dim: int, dtype: str, state_width: int, state_method: str
) -> TableConfig:
    # Cached, because each manifest of a long chain describes the same tables.
    return TableConfig(
        name,
        dim,
        dtype,
        # Valid for every dim and dtype, unlike the other initializers.
        initializer="zeros",
        state_width=state_width,
        state_method=state_method,
    )


_TAIL = re.compile(rb'\n "hash": "([0-9a-f]{32})"\n}\n\Z')
_TAIL_BYTES = len(b'\n "hash": ""\n}\n') + 32

_Count = Annotated[int, Field(ge=0, lt=2**62)]
_Rank = Annotated[int, Field(ge=0, lt=2**31)]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
# A file name, not a path: without separators and without a leading dot.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Base(_Entry):
    """Base of a delta: the name of a snapshot in the same folder, and the hash of its manifest."""

    name: _Name
    hash: _Hash


class TableEntry(_Entry):
    """`TableDescription` in the manifest."""

    name: str
    dim: int
    dtype: Literal["float32", "float64", "float16", "bfloat16", "int8"]
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
    """One data file in the manifest.

    Args:
        name: Name in the snapshot's folder.
        kind: `rows` or `erased` for a file of a table, `state` for a file of state.
        rank: Rank that wrote it.
        table: Table of the rows or keys; empty for state.
        state: Name of the state; empty for rows and erased keys.
        partitions: Half-open range of the partitions of its keys.
        columns: Half-open range of the columns of the embedding, and of each array of optimizer state,
            that its rows contain; for erased keys, the columns that were erased. None for all.
        num_keys: Number of rows or erased keys.
        size_bytes: Size of the file.
        hash: XXH3-128 of the file.
        blocks: XXH3-64 of each block of 1 MiB, concatenated.
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
            raise ValueError(
                f"file {self.name!r} of kind {self.kind} must have a table or a state, depending on kind"
            )
        if not 0 <= self.partitions[0] < self.partitions[1] <= NUM_PARTITIONS:
            raise ValueError(f"file {self.name!r} has an invalid range of partitions")
        if self.columns is not None and (
            self.kind == "state" or not 0 <= self.columns[0] < self.columns[1]
        ):
            raise ValueError(f"file {self.name!r} has an invalid range of columns")
        if len(self.blocks) != BLOCK_DIGITS * -(-self.size_bytes // BLOCK_BYTES):
            raise ValueError(f"file {self.name!r} does not have one hash per block")
        return self

    @property
    def block(self) -> ColumnBlock | None:
        """Columns of the file; None for all."""
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
                raise ValueError(
                    f"file {file.name!r} has table {file.table!r}, which is not in the list of tables"
                )
            if file.columns is not None:
                _check_columns(file, tables[file.table].description)
            if file.rank >= self.world_size:
                raise ValueError(
                    f"file {file.name!r} has rank {file.rank}, but world_size is {self.world_size}"
                )
        return self


def _check_columns(file: FileEntry, table: TableDescription) -> None:
    """Rejects columns that the table does not have, or a table whose state cannot be split by columns."""
    assert file.columns is not None
    if file.columns[1] > table.dim or not ColumnBlock.divides_state(table.config):
        raise ValueError(
            f"file {file.name!r} has columns {file.columns}, which do not fit table {table.name!r} with "
            f"dim {table.dim} and {table.state_width} elements of state"
        )


class Manifest(_Contents):
    """Contents of a committed snapshot."""

    format: Literal["sparring snapshot"] = "sparring snapshot"


class Part(_Contents):
    """Part file with one rank's data files, in the staging folder; removed by the commit."""

    format: Literal["sparring snapshot part"] = "sparring snapshot part"
    token: str
    rank: _Rank


_Text = TypeVar("_Text", Manifest, Part)


def encode_text(contents: Manifest | Part) -> bytes:
    """Encodes a manifest or part file: one line per table and file, and the hash at the end."""
    plain = contents.model_dump(mode="json")
    for file in plain["files"]:
        if file["columns"] is None:  # the same bytes as before the format had columns
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
    """Decodes the text of `encode_text`, and returns the value and its hash.

    Raises:
        ValueError: The text is damaged or has an unexpected format; the message contains the reason.
    """
    tail = _TAIL.search(text, max(0, len(text) - _TAIL_BYTES))
    if tail is None:
        raise ValueError("it does not end with its hash, so it is truncated or not a manifest")
    found, expected = text_hash(text[: tail.start()]), tail[1].decode()
    if found != expected:
        raise ValueError(f"its bytes have the hash {found}, expected {expected}")
    try:
        plain = json.loads(text.decode(), object_pairs_hook=reject_repeated_keys)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(plain, dict):
        raise ValueError("it is not a JSON object")
    plain.pop("hash", None)
    wanted = kind.model_fields["format"].default
    if plain.get("format", wanted) != wanted:
        raise OtherFormatError(f"it is a {plain['format']!r}, expected a {wanted!r}")
    version = plain.get("version")
    if isinstance(version, int) and version > VERSION:
        raise NewerFormatError(version, plain.get("read_by"))
    if version != VERSION:
        raise ValueError(f"its format has version {version!r}, expected version {VERSION}")
    try:
        return kind.model_validate(plain), expected
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the JSON object of these pairs. Raises ValueError if a name occurs twice."""
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name occurs twice in one JSON object")
    return made
