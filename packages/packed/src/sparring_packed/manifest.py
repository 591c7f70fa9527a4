"""Reads and writes the manifest of a serving snapshot. ``docs/format/packed.md`` describes its fields.

The C library has a separate reader; this module is for writing, copying and describing snapshots.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparring.adapter import locate, reading
from sparring.errors import SnapshotDamagedError, SnapshotNotFoundError

__all__ = [
    "FORMAT",
    "ModelFile",
    "ServingBase",
    "ServingFile",
    "ServingManifest",
    "ServingTable",
    "decode_manifest",
    "encode_manifest",
    "read_manifest_text",
    "read_manifest",
    "text_hash",
]

FORMAT: Literal["sparring serving snapshot"] = "sparring serving snapshot"

MANIFEST_BYTES = 64 << 20

MAX_VERSION = 3
"""Latest version of the format."""

LEAST_HASHED_BYTES = 241
"""Minimum size of a file of the model. The C library does not hash shorter files."""

_TAIL = re.compile(rb'\n "hash": "([0-9a-f]{32})"\n}\n\Z')

_Count = Annotated[int, Field(ge=0, le=2**62)]
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
# Not a path: it contains no separator and no leading dot.
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}$")]
_Dtype = Literal["fp32", "fp16", "bf16", "int8", "int4"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ServingBase(_Entry):
    """Another snapshot: its name and the hash of its manifest."""

    name: _Name
    hash: _Hash


class InitialValueSpec(_Entry):
    """An initializer: its kind and its two parameters."""

    kind: str
    first: float
    second: float


class ServingTable(_Entry):
    """A table.

    Attributes:
        name: name of the table.
        dim: number of elements of an embedding.
        dtype: dtype of stored rows.
        trained_dtype: dtype of embeddings in training, to which initial values are rounded.
        seed: seed of initial values.
        initializer: initializer of initial values.
    """

    name: _Name
    dim: Annotated[int, Field(ge=1, le=65_536)]
    dtype: _Dtype
    trained_dtype: Literal["fp32", "fp16", "bf16", "int8"]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    initializer: InitialValueSpec

    @property
    def row_bytes(self) -> int:
        """Size of a stored row in bytes, including its scale and bias."""
        elements = {"fp32": 4 * self.dim, "int8": self.dim + 4, "int4": (self.dim + 1) // 2 + 4}
        return elements.get(self.dtype, 2 * self.dim)


class ServingFile(_Entry):
    """A data file.

    Attributes:
        name: name in the snapshot's folder.
        kind: ``rows`` and ``erased`` are mapped; ``existing`` and ``changed`` are Bloom filters.
        table: name of the table of its keys.
        partitions: half-open range of partitions that contain its keys.
        num_keys: number of rows, of erased keys, or of keys that were added to a filter.
        size_bytes: size of the file.
        hash: xxh3-128 of the file.
    """

    name: _Name
    kind: Literal["rows", "erased", "existing", "changed"]
    table: _Name
    partitions: tuple[int, int] = Field(strict=False)
    num_keys: _Count
    size_bytes: _Count
    hash: _Hash

    @model_validator(mode="after")
    def _check(self) -> ServingFile:
        if not 0 <= self.partitions[0] < self.partitions[1] <= 4096:
            raise ValueError(
                f"file {self.name!r} has partitions {self.partitions}, expected a range in 0 to 4096"
            )
        return self


class ModelFile(_Entry):
    """A file of the model, which is complete in each serving snapshot, also in a delta.

    Attributes:
        name: name in the snapshot's folder.
        kind: ``parameters`` or ``preprocessing``.
        size_bytes: size of the file, at least 241 bytes.
        hash: xxh3-128 of the file.
    """

    name: _Name
    kind: Literal["parameters", "preprocessing"]
    size_bytes: Annotated[int, Field(ge=LEAST_HASHED_BYTES, le=2**62)]
    hash: _Hash


class ServingManifest(_Entry):
    """Contents of a committed serving snapshot.

    Attributes:
        step: training step of the rows.
        published: time of writing, in seconds since 1970.
        source: the training snapshot that it was written from.
        base: for a delta, the serving snapshot in the same folder that it is based on.
        tables: all tables, also in a delta.
        files: the data files.
        model: the files of the model. A manifest with such files has version 2, others have version 1.
        generation: versions of a folder are ordered by generation, step and name. A manifest with another
            generation than 0 has version 3.
    """

    format: Literal["sparring serving snapshot"] = FORMAT
    version: Literal[1, 2, 3] = 1
    step: _Count
    published: float
    source: ServingBase
    base: ServingBase | None = None
    tables: tuple[ServingTable, ...] = Field(strict=False)
    files: tuple[ServingFile, ...] = Field(strict=False)
    model: tuple[ModelFile, ...] = Field((), strict=False)
    generation: _Count = 0
    _hash: str = ""

    @model_validator(mode="after")
    def _check_version(self) -> ServingManifest:
        expected = 3 if self.generation else 2 if self.model else 1
        if self.version != expected:
            raise ValueError(
                f"found version {self.version}, expected {expected} for generation {self.generation} and "
                f"{len(self.model)} files of the model"
            )
        return self

    @property
    def order(self) -> tuple[int, int]:
        """Readers of a folder use the version with the greatest order, or the last by name."""
        return self.generation, self.step

    @property
    def hash(self) -> str:
        """Hash of the manifest's text, which identifies the snapshot."""
        return self._hash

    @property
    def tables_by_name(self) -> Mapping[str, ServingTable]:
        return {table.name: table for table in self.tables}


def text_hash(data: bytes) -> str:
    """Returns xxh3-128 as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def encode_manifest(manifest: ServingManifest) -> bytes:
    """Returns the text of the manifest: one line per table and file, and its hash at the end."""
    plain = manifest.model_dump(mode="json")
    lines = ["{"]
    for name, value in plain.items():
        if (name == "model" and not value and manifest.version < 3) or (
            name == "generation" and not value
        ):
            continue
        if name in {"tables", "files", "model"}:
            entries = [f"  {json.dumps(each, allow_nan=False)}" for each in value]
            lines += [f' "{name}": [', ",\n".join(entries), " ],"]
        else:
            lines.append(f' "{name}": {json.dumps(value, allow_nan=False)},')
    body = "\n".join(lines).encode()
    return body + b'\n "hash": "%b"\n}\n' % text_hash(body).encode()


def decode_manifest(text: bytes) -> ServingManifest:
    """Parses the result of `encode_manifest`.

    Raises:
        ValueError: the text is damaged or is not a manifest. The message contains the reason.
    """
    tail = _TAIL.search(text, max(0, len(text) - 64))
    if tail is None:
        raise ValueError("it does not end with its hash, so it is truncated or not a manifest")
    found, expected = text_hash(text[: tail.start()]), tail[1].decode()
    if found != expected:
        raise ValueError(f"its text has the hash {found}, expected {expected}")
    try:
        plain: Any = json.loads(text.decode())
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(plain, dict) or plain.get("format") != FORMAT:
        raise ValueError("it is not the manifest of a serving snapshot")
    plain.pop("hash", None)
    if isinstance(plain.get("version"), int) and plain["version"] > MAX_VERSION:
        raise ValueError(
            f"its format has version {plain['version']}, but this release reads versions up to "
            f"{MAX_VERSION}; use a later release of sparring-packed"
        )
    try:
        manifest = ServingManifest.model_validate(plain)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None
    manifest._hash = expected
    return manifest


def read_manifest_text(url: str | os.PathLike[str]) -> bytes:
    """Returns the text of the manifest of a serving snapshot on any file system.

    Raises:
        SnapshotNotFoundError: the serving snapshot does not exist.
        SnapshotDamagedError: the manifest is not a file, or is too long.
        SnapshotIOError: the file system failed.
    """
    place, name = locate(url)
    shown = place.url_of(name)
    try:
        with (
            reading(shown, "manifest.json"),
            place.open(name) as folder,
            folder.open("manifest.json") as file,
        ):
            if file.size_bytes > MANIFEST_BYTES:
                raise EOFError(f"it has {file.size_bytes:,} bytes")
            text = bytearray(file.size_bytes)
            file.read_into(0, memoryview(text))
    except SnapshotDamagedError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise SnapshotNotFoundError(
                f"there is no serving snapshot {shown}; write one with sparring_packed.write",
                url=shown,
            ) from error
        raise
    return bytes(text)


def read_manifest(url: str | os.PathLike[str]) -> ServingManifest:
    """Reads the manifest of a serving snapshot on any file system.

    Args:
        url: a path or any URL of fsspec.

    Raises:
        SnapshotNotFoundError: the serving snapshot does not exist.
        SnapshotDamagedError: the manifest is damaged.
        SnapshotIOError: the file system failed.

    Examples:
        >>> import sparring_packed
        >>> from tempfile import TemporaryDirectory
        >>> from sparring import StepContainer, TableConfig
        >>> with TemporaryDirectory() as folder, StepContainer() as container:
        ...     container.declare(TableConfig("item", dim=4))
        ...     _ = container.save(f"{folder}/trained")
        ...     _ = sparring_packed.write(f"{folder}/trained", f"{folder}/served")
        ...     sparring_packed.read_manifest(f"{folder}/served").step
        0
    """
    try:
        return decode_manifest(read_manifest_text(url))
    except ValueError as error:
        place, name = locate(url)
        shown = place.url_of(name)
        raise SnapshotDamagedError(
            f"serving snapshot {shown}: manifest.json is damaged: {error}; copy or publish it again",
            url=shown,
            file="manifest.json",
            offset=0,
        ) from error
