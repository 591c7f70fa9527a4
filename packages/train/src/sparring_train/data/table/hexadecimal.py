"""Conversion of hexadecimal ids."""

from __future__ import annotations

import binascii
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

__all__ = ["HEXADECIMAL", "parse_hexadecimal"]

_MAX_DIGITS = 16
HEXADECIMAL = f"^[0-9a-fA-F]{{1,{_MAX_DIGITS}}}$"
"""Regular expression of a hexadecimal number."""


def parse_hexadecimal(texts: Any) -> npt.NDArray[np.int64]:
    """Converts hexadecimal texts to 64-bit integers; a number n of at least 2^63 becomes n - 2^64.

    Args:
        texts: Arrow array of type string, of shape ``(n,)``, without nulls and empty texts.

    Raises:
        ValueError: a text has more than 16 digits, or contains another character.
    """
    if not len(texts):
        return np.empty(0, np.int64)
    shortest, longest = (each.as_py() for each in pc.min_max(pc.binary_length(texts)).values())
    if longest > _MAX_DIGITS:
        raise ValueError(f"found {longest} characters, expected at most {_MAX_DIGITS} digits")
    if shortest < _MAX_DIGITS:
        texts = pc.ascii_lpad(texts, width=_MAX_DIGITS, padding="0")
    begin = int(np.frombuffer(texts.buffers()[1], np.int32)[texts.offset])
    digits = memoryview(texts.buffers()[2])[begin : begin + _MAX_DIGITS * len(texts)]
    return np.frombuffer(binascii.unhexlify(digits), ">u8").astype(np.uint64).view(np.int64)
