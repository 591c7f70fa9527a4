"""Conversion of strings to ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.errors import InvalidArgumentError

__all__ = ["hash_strings"]


def hash_strings(strings: Any) -> npt.NDArray[np.int64]:
    """Returns the id of each string: the unseeded 64-bit XXH3 of its UTF-8 bytes, as int64.

    The function is a constant of the format. It is the same in C++ (`sparring/hash_string.h`), in C
    (`sparring_hash_string`) and in every release; see ``docs/reference/hash-of-strings.md``.

    Args:
        strings: ``(n,)`` str or bytes: a sequence, a NumPy array, or an Arrow array or chunked array
            of (large) string or binary, which is read without a copy.

    Returns:
        ``(n,)`` int64.

    Raises:
        InvalidArgumentError: an element is neither str nor bytes, or is null.

    Examples:
        >>> from sparring import hash_strings
        >>> hash_strings(["tent", "stove"]).tolist()
        [-3411233715330347278, -8825862227339723238]
    """
    if isinstance(strings, (str, bytes)):
        raise InvalidArgumentError(
            f"hash_strings: strings must be a sequence, found one {type(strings).__name__}; pass a "
            "list of it"
        )
    if hasattr(strings, "__arrow_c_array__"):
        ids, first_null = _native.hash_arrow(*strings.__arrow_c_array__())
        if first_null >= 0:
            raise InvalidArgumentError(
                f"hash_strings: strings[{first_null}] is null, which has no id; fill it, or omit it"
            )
        return ids
    if hasattr(strings, "iterchunks"):
        parts = [hash_strings(chunk) for chunk in strings.iterchunks()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)
    if isinstance(strings, np.ndarray) and strings.ndim != 1:
        raise InvalidArgumentError(
            f"hash_strings: strings must have one dimension, found shape {strings.shape}; flatten them"
        )
    return _native.hash_list(strings.tolist() if isinstance(strings, np.ndarray) else list(strings))
