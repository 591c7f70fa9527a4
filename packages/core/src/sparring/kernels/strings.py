"""Ids of strings."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.errors import InvalidArgumentError

__all__ = ["hash_strings"]


def hash_strings(strings: Any) -> npt.NDArray[np.int64]:
    """The id of each string: XXH3 of 64 bits, without a seed, of its bytes in UTF-8, as int64.

    It is a constant of the format, the same in C++ (`sparring/hash_string.h`), in C
    (`sparring_hash_string`) and in every release; ``docs/reference/hash-of-strings.md``.

    Args:
        strings: ``(n,)`` of str or bytes: a sequence, a NumPy array, or an Arrow array or chunked
            array of (large) string or binary, which is read where it is.

    Raises:
        InvalidArgumentError: an element is neither str nor bytes, or is null.
    """
    if isinstance(strings, (str, bytes)):
        raise InvalidArgumentError(f"strings: found one {type(strings).__name__}, give a list")
    if hasattr(strings, "__arrow_c_array__"):
        ids, first_null = _native.hash_arrow(*strings.__arrow_c_array__())
        if first_null >= 0:
            raise InvalidArgumentError(
                f"strings[{first_null}] is null, which has no id; fill it, or leave it out"
            )
        return ids
    if hasattr(strings, "iterchunks"):
        parts = [hash_strings(chunk) for chunk in strings.iterchunks()]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)
    if isinstance(strings, np.ndarray) and strings.ndim != 1:
        raise InvalidArgumentError(f"strings: found an array of shape {strings.shape}, want (n,)")
    return _native.hash_list(strings.tolist() if isinstance(strings, np.ndarray) else list(strings))
