"""Many short text fields decoded at once: whole numbers, hex numbers, decimals.

Fields are in one byte buffer; where each starts and ends is a pair of arrays. Eight characters
are loaded as one 64-bit word that ends where the field ends, so that the digit of least weight
is always the word's last byte; bytes before the field are masked to ``'0'``. Arithmetic on
the word then decodes its eight digits together (Lamport, "Multiple byte processing with
full-word instructions", CACM 18(8), 1975).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "PADDING",
    "Decoded",
    "Fields",
    "decode_decimals",
    "decode_hex",
    "decode_integers",
    "padded",
]

PADDING = 24
"""Bytes before the first field, so that three words can be loaded that end at any field."""

_MAX_DIGITS = 19  # of 2**63 - 1; any 19 digits fit into uint64
_MAX_SHORT = 8

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Flags = npt.NDArray[np.bool_]


def _every_byte(value: int) -> np.uint64:
    word: np.uint64 = np.uint64(value * 0x0101010101010101)
    return word


def _last_bytes(count: int) -> int:
    """A mask of the `count` bytes of a word that are last in memory."""
    return (1 << 64) - (1 << (64 - 8 * count))


_ZEROS = _every_byte(ord("0"))
_KEEP = np.array([_last_bytes(count) for count in range(9)], np.uint64)
_FILL = ~_KEEP & _ZEROS


def padded(text: bytes | memoryview) -> Bytes:
    """`text` as bytes with `PADDING` before it and one byte behind it."""
    return np.frombuffer(b"".join((bytes(PADDING), text, b"\0")), np.uint8)


@dataclass(frozen=True, slots=True)
class Fields:
    """Text fields of one buffer.

    Args:
        buffer: ``(bytes)`` as `padded` returns it.
        starts: where each field starts in the buffer; any shape.
        ends: where each field ends, exclusive; the shape of `starts`.
    """

    buffer: Bytes
    starts: Positions
    ends: Positions

    def __getitem__(self, selection: Any) -> Fields:
        return Fields(self.buffer, self.starts[selection], self.ends[selection])

    @property
    def is_empty(self) -> Flags:
        is_empty: Flags = self.starts == self.ends
        return is_empty

    def text(self, position: tuple[int, ...]) -> bytes:
        """One field as it stands in the file."""
        return bytes(self.buffer[self.starts[position] : self.ends[position]])


@dataclass(frozen=True, slots=True)
class Decoded:
    """Numbers, and which of them the text really held; the others are arbitrary."""

    values: npt.NDArray[Any]
    is_valid: Flags


def decode_integers(fields: Fields) -> Decoded:
    """Decimal whole numbers as int64: an optional ``-``, then 1 to 19 digits."""
    lengths = fields.ends - fields.starts
    is_negative = (fields.buffer[fields.starts] == ord("-")) & (lengths > 0)
    num_digits = lengths - is_negative
    is_valid = (num_digits > 0) & (num_digits <= _MAX_DIGITS)
    total = np.zeros(lengths.shape, np.uint64)
    weight = 1
    for skip in range(0, min(int(num_digits.max(initial=0)), _MAX_DIGITS), 8):
        word = _words(fields, num_digits, skip)
        is_valid &= _holds_digits(word)
        total += _eight_digits(word) * np.uint64(weight)
        weight *= 10**8
    largest = np.uint64(2**63 - 1) + is_negative.astype(np.uint64)
    is_valid &= total <= largest
    # Negation modulo 2**64 is exact for -2**63 too.
    values = np.where(is_negative, np.negative(total), total).view(np.int64)
    return Decoded(values, is_valid)


def decode_hex(fields: Fields) -> Decoded:
    """Unsigned hex numbers of 1 to 8 digits, of either case, as int64."""
    lengths = fields.ends - fields.starts
    word = _words(fields, np.minimum(lengths, _MAX_SHORT), 0)
    one = _every_byte(0x01)
    is_letter = (word >> np.uint64(6)) & one
    digit = (word & _every_byte(0x0F)) + is_letter * np.uint64(9)
    # Writing the digits again and comparing refuses every byte that is no hex digit.
    above_nine = ((digit + _every_byte(6)) >> np.uint64(4)) & one
    again = digit + _ZEROS + above_nine * np.uint64(ord("a") - ord("0") - 10)
    is_valid = again == (word | (is_letter << np.uint64(5)))
    is_valid &= (digit & _every_byte(0xF0)) == 0
    is_valid &= (lengths > 0) & (lengths <= _MAX_SHORT)
    for bits, lane in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0xFFFFFFFF)):
        digit = ((digit << np.uint64(bits)) | (digit >> np.uint64(2 * bits))) & np.uint64(lane)
    return Decoded(digit.view(np.int64), is_valid)


def decode_decimals(fields: Fields) -> Decoded:
    """One column of decimal fractions as float64, correctly rounded; not ``nan`` or ``inf``.

    Meant for columns with few distinct texts, each of which is decoded once.
    """
    lengths = fields.ends - fields.starts
    is_short = lengths < _MAX_SHORT
    values = np.empty(lengths.shape, np.float64)
    short = fields[is_short]
    # The length in the byte that is never part of a short text tells "1" from "01".
    word = _words(short, lengths[is_short], 0) & ~np.uint64(0xFF)
    word |= lengths[is_short].astype(np.uint64)
    _, first, inverse = np.unique(word, return_index=True, return_inverse=True)
    numbers = [_decimal(short.text((int(at),))) for at in first]
    values[is_short] = np.array(numbers, np.float64)[inverse]
    for at in np.flatnonzero(~is_short):
        values[at] = _decimal(fields.text((int(at),)))
    return Decoded(values, np.isfinite(values))


def _decimal(text: bytes) -> float:
    # float() alone would also take "1_0", " 1", "infinity" and digits of other scripts.
    if not text or set(text) - set(b"0123456789+-.eE"):
        return float("nan")
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _words(fields: Fields, num_characters: Positions, skip: int) -> Words:
    """The 8 characters that end `skip` before each field's end; ``'0'`` before the field."""
    buffer = fields.buffer
    everywhere: npt.NDArray[Any] = np.ndarray(
        (len(buffer) - 7,), np.dtype("<u8"), buffer=buffer, strides=(1,)
    )
    word = everywhere[fields.ends - (8 + skip)].astype(np.uint64, copy=False)
    num_kept = np.clip(num_characters - skip, 0, 8)
    return (word & _KEEP[num_kept]) | _FILL[num_kept]


def _holds_digits(word: Words) -> Flags:
    high = _every_byte(0xF0)
    # The second test refuses ':' to '?', which share the upper four bits with the digits.
    is_valid: Flags = ((word & high) == _ZEROS) & (((word + _every_byte(6)) & high) == _ZEROS)
    return is_valid


def _eight_digits(word: Words) -> Words:
    value: Words = word - _ZEROS
    for base, bits, lane in (
        (10, 8, 0x00FF00FF00FF00FF),
        (100, 16, 0x0000FFFF0000FFFF),
        (10_000, 32, 0xFFFFFFFF),
    ):
        value = (value * np.uint64(base) + (value >> np.uint64(bits))) & np.uint64(lane)
    return value
