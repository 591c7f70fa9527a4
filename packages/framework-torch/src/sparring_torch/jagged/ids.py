"""Converts values that users pass as ids to int64 without loss.

A float tensor may contain ids, for example ``torch.Tensor([101, 102])``. Each value must then be an
integer that the dtype has not rounded. For example, float32 cannot represent every integer from
2**24 on, so 16,777,216 may have been 16,777,217 and is rejected.
"""

from __future__ import annotations

import math
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.misuse import reject_proxy

__all__ = ["flat_ids", "to_ids", "to_device_ids", "is_flat", "to_tensor", "to_integer_ids"]

_FIRST_INEXACT = {
    torch.float64: 2**53,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
}
_NESTED = (list, tuple, np.ndarray, Tensor)
"""Types of bags."""
_WHOLE = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32)


def to_tensor(values: object, what: str) -> Tensor:
    """Converts a tensor, an array or lists to a tensor.

    Raises:
        InvalidArgumentError: the values are text, lists of different lengths, or not supported.
    """
    if isinstance(values, Tensor):
        return values
    reject_proxy(values, what)
    values = _from_objects(values)
    try:
        made = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        if _is_text(values):
            raise InvalidArgumentError(
                f"{what}: found strings, expected int64 ids; convert them with "
                "sparring.hash_strings(strings), as `sparring train`, `sparring serve` and its "
                "clients do"
            ) from error
        wide = _find_wide(values)
        if wide is not None:
            raise InvalidArgumentError(
                f"{what}: found {wide}, which does not fit into int64; unsigned ids keep their bits as "
                "negative numbers: torch.from_numpy(np.array(ids, np.uint64).view(np.int64))",
                value=wide,
            ) from error
        if _is_object(values) and not any(isinstance(each, _NESTED) for each in values.flat):
            found = next(each for each in values.flat if not _is_whole(each))
            raise InvalidArgumentError(
                f"{what}: found {found!r} in an array of objects, expected int64 ids; replace or remove "
                "the values that are not integers, then convert it: ids.astype(np.int64)",
                value=found,
            ) from error
        raise InvalidArgumentError(
            f"{what}: expected a tensor, an array or lists of one length, found "
            f"{type(values).__name__} ({error}); for bags of different lengths use "
            "torch.nested.nested_tensor(lists, layout=torch.jagged), or pass a KeyedJaggedTensor to a "
            "collection",
        ) from error
    return made if made.numel() else made.to(torch.int64)


def _from_objects(values: Any) -> Any:
    """Converts an array of objects, as pandas creates them, if all of them are integers of 64 bits."""
    if not _is_object(values):
        return values
    fits = all(_is_whole(each) and -(2**63) <= int(each) < 2**63 for each in values.flat)
    return values.astype(np.int64) if fits else values


def _is_object(values: object) -> TypeGuard[npt.NDArray[Any]]:
    return isinstance(values, np.ndarray) and values.dtype == object


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _find_wide(values: Any) -> int | None:
    """Returns the first integer in lists or arrays that does not fit into int64."""
    if isinstance(values, (list, tuple, np.ndarray)):
        # An array without dimensions cannot be iterated.
        for each in values.flat if isinstance(values, np.ndarray) else values:
            found = _find_wide(each)
            if found is not None:
                return found
    is_whole = isinstance(values, (int, np.integer))
    return int(values) if is_whole and not -(2**63) <= int(values) < 2**63 else None


def _is_text(values: Any) -> bool:
    while isinstance(values, (list, tuple)) and len(values):
        values = values[0]
    if isinstance(values, np.ndarray) and values.dtype == object:
        return any(isinstance(each, (str, bytes)) for each in values.flat)
    return isinstance(values, (str, bytes)) or getattr(values, "dtype", np.dtype(int)).kind in "SU"


def is_flat(nested: Any) -> bool:
    """Returns whether the components of a nested tensor are contiguous bags."""
    return nested.layout is torch.jagged and nested.lengths() is None and nested.dim() == 2


def flat_ids(nested: Tensor) -> Tensor:
    """Returns all ids of a nested tensor ``(n,)``, component after component."""
    if is_flat(nested):
        return nested.values()
    parts = [each.reshape(-1) for each in nested.unbind()]
    return torch.cat(parts) if parts else torch.empty(0, dtype=nested.dtype, device=nested.device)


def to_ids(values: Tensor, what: str) -> Tensor:
    """Returns `values` as contiguous ``(n,)`` int64 on the CPU.

    Args:
        values: ``(n,)`` of an integer dtype, or of a float dtype with whole values.
        what: name of the values in messages, for example ``feature 'user'``.

    Raises:
        InvalidArgumentError: the values have the wrong number of dimensions or dtype, or contain
            fractions, NaN, infinity, or floats that are too large to be exact.
    """
    if values.dim() != 1:
        raise InvalidArgumentError(
            f"ids of {what} must have one dimension, found shape {tuple(values.shape)}; "
            "flatten them and give lengths or offsets",
            shape=tuple(values.shape),
        )
    return to_integer_ids(values, what).contiguous()


def to_device_ids(values: Tensor, what: str) -> Tensor:
    """Same as `to_integer_ids`, but keeps the device; floats are checked on the host.

    Raises:
        InvalidArgumentError: see `to_ids`.
    """
    if values.dtype is torch.int64:
        return values.detach()
    if values.dtype in _WHOLE:
        return values.detach().to(torch.int64)
    return to_integer_ids(values, what).to(values.device)


def to_integer_ids(values: Tensor, what: str) -> Tensor:
    """Same as `to_ids`, for any number of dimensions.

    Raises:
        InvalidArgumentError: see `to_ids`.
    """
    dtype = values.dtype
    if dtype is torch.int64:
        return values.detach().cpu()
    if dtype in _WHOLE:
        return values.detach().cpu().to(torch.int64)
    limit = _FIRST_INEXACT.get(dtype)
    if limit is None:
        # Unsigned ids keep their bits, as with data.types: unsigned of `sparring train`.
        how = ".view" if dtype is torch.uint64 else ".to"
        raise InvalidArgumentError(
            f"ids of {what} must be int64, found dtype {dtype}; convert them with "
            f"{how}(torch.int64) and make sure that no bit is lost",
            dtype=str(dtype),
        )
    floats = values.detach().cpu().to(torch.float64)
    is_wrong = ~(floats.abs() < limit) | (floats != floats.trunc())
    if bool(is_wrong.any()):
        found = float(floats[is_wrong].reshape(-1)[0])
        position = tuple(int(each) for each in is_wrong.nonzero()[0])
        reason = "is not a whole number"
        if limit <= abs(found) < math.inf:
            reason = f"is at least {limit:,}, from where {dtype} rounds integers"
        where = position[0] if len(position) == 1 else position
        raise InvalidArgumentError(
            f"ids of {what}: {found!r} at position {where} {reason}; give ids as torch.int64",
            value=found,
            position=where,
            dtype=str(dtype),
        )
    return floats.to(torch.int64)
