"""Text fields decoded in bulk give what Python gives one by one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparring_train.data.fields import (
    PADDING,
    Decoded,
    Fields,
    decode_decimals,
    decode_hex,
    decode_integers,
    padded,
)

Decode = Callable[[Fields], Decoded]


def decode(decoder: Decode, texts: list[bytes]) -> list[object]:
    """What each text is, None where it is not valid."""
    lengths = np.array([len(text) for text in texts], np.int64)
    # A byte between fields, as in a file: no field may read its neighbour.
    ends = PADDING + np.cumsum(lengths + 1) - 1
    decoded = decoder(Fields(padded(b"".join(text + b"9" for text in texts)), ends - lengths, ends))
    pairs = zip(decoded.values.tolist(), decoded.is_valid.tolist(), strict=True)
    return [value if is_valid else None for value, is_valid in pairs]


def integer(text: bytes) -> int | None:
    if not re.fullmatch(rb"-?[0-9]{1,19}", text):
        return None
    return int(text) if -(2**63) <= int(text) < 2**63 else None


def hexadecimal(text: bytes) -> int | None:
    return int(text, 16) if re.fullmatch(rb"[0-9a-fA-F]{1,8}", text) else None


def decimal(text: bytes) -> float | None:
    if not re.fullmatch(rb"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text):
        return None
    return float(text) if math.isfinite(float(text)) else None


near_digits = st.lists(st.sampled_from(b"0123456789-+.:/agfGF@`\x00\xff "), max_size=22).map(bytes)
whole = st.integers(-(2**64), 2**64).map(lambda number: str(number).encode())
hex_digits = st.lists(st.sampled_from(b"0123456789abcdefABCDEF"), max_size=10).map(bytes)
fractions = st.floats().map(lambda number: repr(number).encode())
texts = st.lists(st.one_of(near_digits, whole, hex_digits, fractions, st.binary(max_size=12)))


@given(texts)
@example([b"9223372036854775807", b"-9223372036854775808", b"9223372036854775808"])
@example([b"-9223372036854775809", b"-", b"--1", b"00000000000000000001", b"-0", b""])
def test_integers_are_what_python_reads(texts: list[bytes]) -> None:
    assert decode(decode_integers, texts) == [integer(text) for text in texts]


@given(texts)
@example([b"ffffffff", b"FFFFFFFF", b"0", b"100000000", b"", b"@", b"g", b"\x10"])
def test_hex_numbers_are_what_python_reads(texts: list[bytes]) -> None:
    assert decode(decode_hex, texts) == [hexadecimal(text) for text in texts]


@given(texts)
@example([b"1", b"01", b"0001", b"-1", b"000-1", b"", b"4.5", b"123456789.5", b"3456789.5"])
@example([b"nan", b"inf", b"1_0", b" 1", b"1e400", b"1e-1"])
def test_decimals_are_what_python_reads(texts: list[bytes]) -> None:
    assert decode(decode_decimals, texts) == [decimal(text) for text in texts]


@pytest.mark.parametrize("byte", range(256))
def test_hex_takes_no_byte_but_hex_digits(byte: int) -> None:
    text = bytes([byte])
    assert decode(decode_hex, [text, b"1" + text + b"1"]) == [
        hexadecimal(text),
        hexadecimal(b"1" + text + b"1"),
    ]
