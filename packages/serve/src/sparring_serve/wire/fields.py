"""The wire format of protobuf: encodes frozen dataclasses and decodes them within limits.

A message is a dataclass whose fields specify their number and kind, created by `text`, `data`,
`number`, `real`, `flag`, `one`, `many`, `texts`, `datas` and `numbers`. `decode` raises only
`MessageError` for any input, and allocates no more than the input requires. Bytes fields are views
into the message. https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn, TypeVar

from sparring.errors import SparringError

__all__ = [
    "MAX_BYTES",
    "Buffer",
    "MessageError",
    "Space",
    "data",
    "datas",
    "decode",
    "encode",
    "encode_pieces",
    "flag",
    "many",
    "number",
    "numbers",
    "one",
    "real",
    "text",
    "texts",
]

MAX_BYTES = 64 << 20
"""Maximum size of a message."""

_MAX_ITEMS = 8192
"""Maximum number of items of a repeated field, and of fields of a message."""

_MAX_TEXT = 4096

Buffer = bytes | bytearray | memoryview
"""Bytes; a memoryview must have single-byte items."""

_VARINT, _FIXED_64, _DELIMITED, _FIXED_32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1


class MessageError(SparringError, ValueError):
    """The bytes are not a message of the expected type: send a message that conforms to the `.proto`
    files."""


@dataclass(frozen=True, slots=True)
class _Kind:
    number: int
    form: str
    is_repeated: bool = False
    message: type[Any] | None = None


def text(number: int) -> Any:
    """A string; empty if absent."""
    return field(default="", metadata={"kind": _Kind(number, "text")})


def data(number: int) -> Any:
    """Bytes; empty if absent."""
    return field(default=b"", metadata={"kind": _Kind(number, "data")})


def number(number: int) -> Any:
    """An integer or enumerator, int64 or uint64; 0 if absent. Decoded as int64."""
    return field(default=0, metadata={"kind": _Kind(number, "number")})


def real(number: int) -> Any:
    """A double; 0 if absent."""
    return field(default=0.0, metadata={"kind": _Kind(number, "real")})


def flag(number: int) -> Any:
    """A bool; False if absent."""
    return field(default=False, metadata={"kind": _Kind(number, "flag")})


def one(number: int, message: type[Any]) -> Any:
    """A message; a message of defaults if absent."""
    return field(
        default_factory=message, metadata={"kind": _Kind(number, "message", False, message)}
    )


def many(number: int, message: type[Any]) -> Any:
    """A tuple of messages."""
    return field(default=(), metadata={"kind": _Kind(number, "message", True, message)})


def texts(number: int) -> Any:
    """A tuple of strings."""
    return field(default=(), metadata={"kind": _Kind(number, "text", True)})


def datas(number: int) -> Any:
    """A tuple of bytes."""
    return field(default=(), metadata={"kind": _Kind(number, "data", True)})


def numbers(number: int) -> Any:
    """A tuple of integers; encoded packed, decoded packed or not."""
    return field(default=(), metadata={"kind": _Kind(number, "number", True)})


# -- writing ------------------------------------------------------------------------------


def encode(message: Any) -> bytes:
    """Encodes a message. Large fields are copied once."""
    return b"".join(encode_pieces(message))


class Space:
    """Bytes of a data field that are written after the message is encoded.

    Args:
        size: Number of bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.view = memoryview(bytearray())
        """The bytes, once they have a place."""

    def __len__(self) -> int:
        return self.size


def encode_pieces(message: Any) -> list[Any]:
    """Returns the parts of an encoded message: bytes, and the `Space` objects among its fields."""
    pieces: list[Any] = []
    kind_of_message: Any = type(message)
    for name, kind in _fields(kind_of_message):
        value = getattr(message, name)
        if not kind.is_repeated:
            # A message of defaults is encoded as absent.
            if kind.form == "message" or value:
                _put(pieces, kind, value)
        elif kind.form == "number":
            if value:
                packed = b"".join(map(_varint, value))
                pieces += (_tag(kind.number, _DELIMITED), _varint(len(packed)), packed)
        else:
            for each in value:
                _put(pieces, kind, each)
    return pieces


def _put(pieces: list[Any], kind: _Kind, value: Any) -> None:
    form = kind.form
    if form == "data":
        pieces += (_tag(kind.number, _DELIMITED), _varint(len(value)), value)
    elif form == "text":
        content = value.encode()
        pieces += (_tag(kind.number, _DELIMITED), _varint(len(content)), content)
    elif form == "message":
        inner = encode_pieces(value)
        length = sum(map(len, inner))
        if length or kind.is_repeated:
            pieces += (_tag(kind.number, _DELIMITED), _varint(length))
            pieces += inner
    elif form == "real":
        pieces += (_tag(kind.number, _FIXED_64), struct.pack("<d", value))
    else:
        pieces += (_tag(kind.number, _VARINT), _varint(int(value)))


@cache
def _tag(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


_SHORT = tuple(bytes((value,)) for value in range(0x80))


def _varint(value: int) -> bytes:
    if 0 <= value < 0x80:
        return _SHORT[value]
    value &= _MASK
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# -- reading ------------------------------------------------------------------------------

_Message = TypeVar("_Message")


def decode(message: type[_Message], content: Buffer, *, rejects_unknown: bool = False) -> _Message:
    """Decodes a message.

    Args:
        message: Class of the message.
        content: Encoded message.
        rejects_unknown: Whether unknown fields raise an error; otherwise they are skipped.

    Raises:
        MessageError: `content` is invalid, exceeds a limit, or has an unknown field.
    """
    view = memoryview(content)
    if len(view) > MAX_BYTES:
        _refuse(message, f"{len(view):,} bytes, more than {MAX_BYTES:,}")
    found: _Message = _decode(message, view, rejects_unknown)
    return found


def _decode(message: Any, view: memoryview, rejects_unknown: bool) -> Any:
    kinds = _kinds(message)
    values: dict[str, Any] = {}
    for num_fields, (number, wire_type, value) in enumerate(_split(message, view)):
        if num_fields >= _MAX_ITEMS:
            _refuse(message, f"more than {_MAX_ITEMS:,} fields")
        if number not in kinds:
            if rejects_unknown:
                names = ", ".join(f"{kind.number} {name}" for name, kind in _fields(message))
                _refuse(message, f"field {number} is not supported; supported fields: {names}")
            continue
        name, kind = kinds[number]
        if kind.is_repeated:
            items = values.setdefault(name, [])
            if kind.form == "number" and wire_type == _DELIMITED:
                items.extend(_packed(message, value))
            else:
                items.append(_read(message, name, kind, wire_type, value, rejects_unknown))
            if len(items) > _MAX_ITEMS:
                _refuse(message, f"more than {_MAX_ITEMS:,} items of {name}")
        else:
            values[name] = _read(message, name, kind, wire_type, value, rejects_unknown)
    return message(
        **{
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
        }
    )


def _read(
    message: type[Any],
    name: str,
    kind: _Kind,
    wire_type: int,
    value: Any,
    rejects_unknown: bool,
) -> Any:
    form = kind.form
    if wire_type != _WIRE_TYPES[form]:
        _refuse(message, f"field {name} has the wire type {wire_type}")
    if form == "data":
        return value
    if form == "number":
        return value - (1 << 64) if value >> 63 else value
    if form == "flag":
        return bool(value)
    if form == "real":
        return struct.unpack("<d", value)[0]
    if form == "text":
        if len(value) > _MAX_TEXT:
            _refuse(message, f"field {name} has {len(value):,} bytes, more than {_MAX_TEXT:,}")
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            _refuse(message, f"field {name} is not UTF-8")
    # Message types are not recursive, so the depth is bounded.
    assert kind.message is not None
    return _decode(kind.message, value, rejects_unknown)


_WIRE_TYPES = {
    "number": _VARINT,
    "flag": _VARINT,
    "real": _FIXED_64,
    "data": _DELIMITED,
    "text": _DELIMITED,
    "message": _DELIMITED,
}


def _split(message: type[Any], view: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Yields number, wire type and content of each field: an int for a varint, a view for all others."""
    at, end = 0, len(view)
    while at < end:
        # Fast path: almost all field numbers have one byte.
        key = view[at]
        if key < 0x80:
            at += 1
        else:
            key, at = _read_varint(message, view, at)
        number, wire_type = key >> 3, key & 7
        if number == 0 or number >= 1 << 29:
            _refuse(message, f"a field has the number {number}")
        if wire_type == _VARINT:
            value, at = _read_varint(message, view, at)
            yield number, wire_type, value
            continue
        if wire_type == _DELIMITED:
            if at < end and view[at] < 0x80:
                length = view[at]
                at += 1
            else:
                length, at = _read_varint(message, view, at)
        elif wire_type in (_FIXED_64, _FIXED_32):
            length = 8 if wire_type == _FIXED_64 else 4
        else:
            _refuse(message, f"field {number} has the wire type {wire_type}")
        if length > end - at:
            _refuse(message, f"field {number} has {length:,} bytes, but only {end - at:,} are left")
        yield number, wire_type, view[at : at + length]
        at += length


def _packed(message: type[Any], view: memoryview) -> Iterator[int]:
    at = 0
    # A number has at most 10 bytes.
    if len(view) > _MAX_ITEMS * 10:
        _refuse(message, f"a packed field has {len(view):,} bytes")
    while at < len(view):
        value, at = _read_varint(message, view, at)
        yield value - (1 << 64) if value >> 63 else value


def _read_varint(message: type[Any], view: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for position in range(10):
        if at >= len(view):
            break
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << 7 * position
        if byte < 0x80:
            return value & _MASK, at
    _refuse(message, f"an integer does not end at byte {at:,}")


def _refuse(message: type[Any], found: str) -> NoReturn:
    raise MessageError(
        f"invalid {message.__name__}: {found}; send a message that conforms to the .proto files of "
        "sparring-serve"
    )


@cache
def _fields(message: Any) -> tuple[tuple[str, _Kind], ...]:
    return tuple((each.name, each.metadata["kind"]) for each in dataclasses.fields(message))


@cache
def _kinds(message: Any) -> dict[int, tuple[str, _Kind]]:
    return {kind.number: (name, kind) for name, kind in _fields(message)}
