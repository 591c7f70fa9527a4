"""libsparring_packed.so with ctypes: its structs correspond to ``sparring_packed.h``.

ctypes releases the interpreter lock during each call.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    CDLL,
    POINTER,
    Structure,
    byref,
    c_char,
    c_char_p,
    c_double,
    c_int32,
    c_int64,
    c_uint64,
    c_void_p,
)
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import (
    ClosedError,
    CorruptDataError,
    InternalError,
    InvalidArgumentError,
    SnapshotDamagedError,
    SnapshotIOError,
    SparringError,
    UnsupportedError,
)

__all__ = [
    "DTYPES",
    "STORED",
    "Lookup",
    "Model",
    "Open",
    "Pack",
    "Refresh",
    "Request",
    "Scan",
    "Select",
    "Table",
    "Verify",
    "Version",
    "Widen",
    "call",
    "include_path",
    "library",
    "library_path",
    "set_simd_level",
    "simd_level",
    "widen_rows",
]

DTYPES = ("fp32", "fp16", "bf16", "int8", "int4")
"""Names of stored dtypes; the index is the number in the C library."""

STORED = -1
"""Requests rows in their stored dtype."""

_CPU = 1


class _Error(Structure):
    pass


_Release = ctypes.CFUNCTYPE(None, POINTER(_Error))
_Error._fields_ = [("message", c_char_p), ("release", _Release), ("owner", c_void_p)]


class _Call(Structure):
    _fields_ = [
        ("struct_bytes", c_uint64),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("stream", c_void_p),
        ("executor", c_void_p),
        ("error", _Error),
    ]


class _Arguments(Structure):
    """A struct that starts with a SparringCall."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(_Call(ctypes.sizeof(type(self)), _CPU, 0, None, None), **fields)


class Open(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("path", c_char_p),
        ("verify", c_int32),
        ("keep_versions", c_int32),
        ("partition_begin", c_int32),
        ("partition_end", c_int32),
        ("packed", c_void_p),
    ]


class Refresh(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("path", c_char_p),
        ("verify", c_int32),
        ("is_changed", c_int32),
    ]


class Verify(_Arguments):
    _fields_ = [("call", _Call)]


class Model(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("version", c_char_p),
        ("file", c_int32),
        ("num_files", c_int32),
        ("begin", c_uint64),
        ("capacity", c_uint64),
        ("bytes", c_void_p),
        ("count", c_uint64),
        ("size_bytes", c_uint64),
        ("kind", c_char * 32),
        ("name", c_char * 256),
        ("hash", c_char * 33),
        ("step", c_int64),
        ("version_hash", c_char * 33),
    ]


class Version(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("back", c_int32),
        ("num_versions", c_int32),
        ("num_tables", c_int32),
        ("num_layers", c_int32),
        ("step", c_int64),
        ("published", c_double),
        ("mapped_bytes", c_uint64),
        ("hash", c_char * 33),
        ("name", c_char * 256),
        ("generation", c_int64),
    ]


class Table(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("table", c_int32),
        ("dim", c_int32),
        ("dtype", c_int32),
        ("trained_dtype", c_int32),
        ("row_bytes", c_int64),
        ("num_rows", c_int64),
        ("name", c_char_p),
    ]


class Request(Structure):
    _fields_ = [
        ("table", c_int32),
        ("is_mean", c_int32),
        ("count", c_int64),
        ("ids", c_void_p),
        ("rows", c_void_p),
        ("row_stride", c_uint64),
        ("found", c_void_p),
        ("num_bags", c_int64),
        ("offsets", c_void_p),
        ("weights", c_void_p),
    ]


class Lookup(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("dtype", c_int32),
        ("missing", c_int32),
        ("version", c_char_p),
        ("num_requests", c_int64),
        ("requests", POINTER(Request)),
        ("step", c_int64),
        ("published", c_double),
        ("hash", c_char * 33),
    ]


class Scan(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("version", c_char_p),
        ("table", c_int32),
        ("dtype", c_int32),
        ("cursor", c_uint64 * 2),
        ("capacity", c_int64),
        ("count", c_int64),
        ("ids", c_void_p),
        ("rows", c_void_p),
        ("is_done", c_int32),
    ]


class Select(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("num_queries", c_int64),
        ("num_rows", c_int64),
        ("ids", c_void_p),
        ("dim", c_int64),
        ("queries", c_void_p),
        ("rows", c_void_p),
        ("starts", c_void_p),
        ("excluded", c_void_p),
        ("excluded_offsets", c_void_p),
        ("k", c_int64),
        ("capacity", c_int64),
        ("best", c_void_p),
        ("counts", c_void_p),
        ("is_last", c_int32),
    ]


class Widen(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("dtype", c_int32),
        ("dim", c_int32),
        ("count", c_int64),
        ("rows", c_void_p),
        ("num_bytes", c_uint64),
        ("out", c_void_p),
    ]


class Pack(_Arguments):
    _fields_ = [
        ("call", _Call),
        ("table", c_char_p),
        ("count", c_int64),
        ("ids", c_void_p),
        ("embeddings", c_void_p),
        ("source_stride", c_uint64),
        ("source_dtype", c_int32),
        ("dtype", c_int32),
        ("dim", c_int32),
        ("partition_begin", c_int32),
        ("partition_end", c_int32),
        ("file_bytes", c_uint64),
        ("file", c_void_p),
        ("square_error", c_double),
        ("square_sum", c_double),
    ]


# Keys are the numbers of SparringStatus.
_ERRORS: dict[int, type[SparringError]] = {
    1: InvalidArgumentError,
    2: UnsupportedError,
    3: ClosedError,
    6: SnapshotIOError,
    8: SnapshotDamagedError,
    9: InternalError,
}
_OUT_OF_MEMORY = 5


def library_path() -> Path:
    """Returns the path of the C library, which other programs may also open.

    Examples:
        >>> import sparring_packed
        >>> sparring_packed.library_path().name
        'libsparring_packed.so'
    """
    return Path(__file__).parent / "libsparring_packed.so"


def include_path() -> Path:
    """Returns the folder of the C headers.

    Examples:
        >>> import sparring_packed
        >>> (sparring_packed.include_path() / "sparring_packed.h").is_file()
        True
    """
    return Path(__file__).parent / "include"


@cache
def library() -> CDLL:
    """Opens the C library once and returns it.

    Raises:
        CorruptDataError: the library is missing or cannot be loaded.
    """
    try:
        opened = CDLL(str(library_path()))
        for name in ("refresh", "verify", "version", "table", "lookup", "pool", "scan"):
            getattr(opened, f"sparring_packed_{name}").argtypes = [c_void_p, c_void_p]
        for name in ("open", "close", "pack", "widen"):
            getattr(opened, f"sparring_packed_{name}").argtypes = [c_void_p]
        opened.sparring_packed_close.restype = None
        opened.sparring_packed_simd_level.restype = c_char_p
    except (OSError, AttributeError) as error:
        # AttributeError: the library belongs to another release than this file.
        raise CorruptDataError(
            f"the library of sparring-packed cannot be loaded: {error}; install it again: "
            "pip install --force-reinstall sparring-packed"
        ) from error
    return opened


def call(function: str, arguments: _Arguments, handle: c_void_p | None = None) -> None:
    """Calls ``sparring_packed_<function>`` and converts an error status to an exception.

    Raises:
        SparringError: the exception class depends on the status.
        MemoryError: out of memory.
    """
    entry = getattr(library(), f"sparring_packed_{function}")
    given = (byref(arguments),) if handle is None else (handle, byref(arguments))
    status = entry(*given)
    if status == 0:
        return
    error = arguments.call.error
    message = (error.message or b"no reason was given").decode(errors="replace")
    if error.release:
        error.release(byref(error))
    if status == _OUT_OF_MEMORY:
        raise MemoryError(message)
    raise _ERRORS.get(status, InternalError)(message)


def simd_level() -> str:
    """Returns the SIMD level of lookups. All levels, ``portable``, ``avx2`` and ``avx512``, return equal
    bits."""
    level: bytes = library().sparring_packed_simd_level()
    return level.decode()


def set_simd_level(name: str) -> None:
    """Sets the SIMD level of lookups in this process.

    Raises:
        InvalidArgumentError: this CPU does not support the level.
    """
    if not library().sparring_packed_set_simd_level(name.encode()):
        raise InvalidArgumentError(
            f"SIMD level {name!r} is not available here; choose portable, avx2 or avx512"
        )


def widen_rows(
    stored: bytes | bytearray | memoryview, dtype: str, out: npt.NDArray[np.float32]
) -> None:
    """Converts consecutive rows in their stored dtype to float32.

    Args:
        stored: the bytes of the rows; ``docs/format/packed.md`` describes rows of each dtype.
        dtype: one of `DTYPES`.
        out: ``(n, dim)``, C-contiguous, receives the rows.

    Raises:
        InvalidArgumentError: the number of bytes does not match, or another argument is invalid.

    Examples:
        >>> import numpy as np
        >>> from sparring_packed import widen_rows
        >>> rows = np.empty((2, 2), np.float32)
        >>> widen_rows(np.array([[1, 2], [3, 4]], np.float16).tobytes(), "fp16", rows)
        >>> rows.tolist()
        [[1.0, 2.0], [3.0, 4.0]]
    """
    if dtype not in DTYPES:
        raise InvalidArgumentError(
            f"widen_rows: dtype must be one of {', '.join(DTYPES)}, found {dtype!r}"
        )
    if out.ndim != 2 or out.dtype != np.float32 or not out.flags.c_contiguous:
        raise InvalidArgumentError(
            "widen_rows: out must be a C-contiguous (n, dim) array of float32, found "
            f"{out.dtype} {out.shape}"
        )
    content = np.frombuffer(stored, np.uint8)
    arguments = Widen(
        dtype=DTYPES.index(dtype),
        dim=out.shape[1],
        count=len(out),
        rows=content.ctypes.data,
        num_bytes=len(content),
        out=out.ctypes.data,
    )
    call("widen", arguments)
