"""Lengths and offsets: two descriptions of how a flat tensor is divided into bags.

For bags of 2, 3 and 1 values::

    lengths            [2, 3, 1]
    offsets            [0, 2, 5, 6]      start of each bag, and the end
    offsets, starts    [0, 2, 5]         also accepted; the end is the number of values
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError

__all__ = [
    "Counts",
    "check_values",
    "find_lengths",
    "lengths_to_offsets",
    "offsets_to_lengths",
    "to_values",
]

Counts = Tensor | Sequence[int]
"""Lengths or offsets as users pass them: ``(bags,)`` integers, a tensor or a list."""


def to_values(values: object, what: str) -> Tensor:
    """Converts a tensor, an array or a list to a tensor of at least one dimension.

    Raises:
        InvalidArgumentError: the value is a scalar or cannot be converted.
    """
    if not isinstance(values, Tensor):
        try:
            values = torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"{what} must be a tensor or a list of numbers, found {type(values).__name__}, which "
                f"torch.as_tensor does not accept: {error}"
            ) from error
        if values.numel() == 0:
            values = values.to(torch.int64)
    if values.dim() == 0:
        raise InvalidArgumentError(
            f"{what} must have at least one dimension, found a scalar; give a list of one value",
            shape=(),
        )
    return values


def find_lengths(
    num_values: int,
    lengths: Counts | None,
    offsets: Counts | None,
    *,
    num_keys: int = 1,
    device: torch.device | None = None,
) -> Tensor:
    """Returns lengths ``(bags,)`` of `num_values` values, from lengths or offsets.

    Args:
        num_values: total number of values in all bags.
        lengths: length of each bag. If `offsets` are given, too, both must agree.
        offsets: start of each bag, with or without the end.
        num_keys: number of features, each with the same number of bags. If the last offset is
            `num_values`, this number shows whether it is the end or the start of an empty bag.
        device: device of the result.

    Raises:
        InvalidArgumentError: neither is given, or both are and they disagree; counts are not
            one-dimensional integers, or are negative; lengths do not sum to `num_values`; offsets
            decrease or do not start at 0.
    """
    if lengths is not None:
        checked = _to_counts(lengths, "lengths").to(device)
        _check_lengths(checked, num_values)
        if offsets is not None:
            other = offsets_to_lengths(offsets, num_values, num_keys=num_keys)
            if not checked.is_meta and not torch.equal(
                checked.cpu().to(torch.int64), other.cpu().to(torch.int64)
            ):
                raise InvalidArgumentError(
                    f"lengths and offsets disagree: lengths are {_format_counts(checked)}, but "
                    f"offsets mean {_format_counts(other)}; give only one of them"
                )
        return checked
    if offsets is not None:
        return offsets_to_lengths(offsets, num_values, num_keys=num_keys).to(device)
    raise InvalidArgumentError(
        "a jagged tensor requires lengths or offsets, found neither; give lengths=[…], one number "
        "per bag"
    )


def check_values(tensor: Tensor, operation: str) -> None:
    """Checks that a tensor has values.

    Raises:
        InvalidArgumentError: the tensor is on the device ``meta``.
    """
    if tensor.is_meta:
        raise InvalidArgumentError(
            f"{operation}: found a batch on device 'meta', which has shapes but no values; use a batch "
            "with values on another device, for example 'cpu'"
        )


def lengths_to_offsets(lengths: Tensor) -> Tensor:
    """Converts lengths to offsets ``(bags + 1,)`` of the same dtype, including the end."""
    offsets = torch.zeros(lengths.numel() + 1, dtype=lengths.dtype, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def offsets_to_lengths(offsets: Counts, num_values: int, *, num_keys: int = 1) -> Tensor:
    """Converts offsets with or without the end to lengths ``(bags,)``.

    Raises:
        InvalidArgumentError: offsets are not one-dimensional integers, do not start at 0, decrease,
            or exceed `num_values`.
    """
    checked = _to_counts(offsets, "offsets")
    count = checked.numel()
    if count == 0:
        checked = torch.zeros(1, dtype=torch.int64, device=checked.device)
        count = 1
    if checked.is_meta:
        steps = checked[1:] - checked[:-1]
        return steps if (count - 1) % num_keys == 0 else checked
    if int(checked[0]) != 0:
        raise InvalidArgumentError(
            f"offsets must start at 0, found {_format_counts(checked)}; make 0 the start of the "
            "first bag",
            offsets=checked.tolist(),
        )
    steps = checked[1:] - checked[:-1]
    if count > 1 and int(steps.min()) < 0:
        position = int((steps < 0).nonzero()[0])
        raise InvalidArgumentError(
            f"offsets must not decrease, found {int(checked[position + 1])} after "
            f"{int(checked[position])} at position {position + 1}; repeat the previous offset for an "
            "empty bag",
            position=position + 1,
        )
    last = int(checked[-1])
    if last > num_values:
        raise InvalidArgumentError(
            f"offsets must not exceed the number of values, {num_values}, found {last}; end with the "
            "last start or with the number of values",
            last=last,
            num_values=num_values,
        )
    has_end = last == num_values
    if has_end and num_keys > 1 and (count - 1) % num_keys and count % num_keys == 0:
        # The last bag of the last feature is empty, so its start looks like the end.
        has_end = False
    if has_end:
        return steps
    return torch.cat([steps, torch.tensor([num_values - last], dtype=checked.dtype).to(steps)])


def _to_counts(counts: Counts, what: str) -> Tensor:
    tensor = counts if isinstance(counts, Tensor) else torch.as_tensor(counts)
    if tensor.numel() == 0 and tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.int64)
    if tensor.dim() != 1:
        raise InvalidArgumentError(
            f"{what} must have one dimension, found shape {tuple(tensor.shape)}; flatten them",
            shape=tuple(tensor.shape),
        )
    if tensor.dtype in (torch.int64, torch.int32):
        return tensor
    if tensor.dtype.is_complex or tensor.dtype is torch.bool:
        is_whole = False
    elif tensor.dtype.is_floating_point:
        is_whole = bool((tensor == tensor.trunc()).all())
    else:
        is_whole = True
    if not is_whole:
        raise InvalidArgumentError(
            f"{what} must be integers, found {_format_counts(tensor)} of dtype {tensor.dtype}; "
            "convert them",
            dtype=str(tensor.dtype),
        )
    return tensor.to(torch.int64)


def _check_lengths(lengths: Tensor, num_values: int) -> None:
    if lengths.is_meta or (torch.compiler.is_compiling() and torch.compiler.is_exporting()):
        return  # lengths have no values yet; the lookup in the program checks them
    if lengths.numel() and int(lengths.min()) < 0:
        position = int((lengths < 0).nonzero()[0])
        raise InvalidArgumentError(
            f"lengths must not be negative, found {int(lengths[position])} at position {position}; "
            "use 0 for an empty bag",
            position=position,
            length=int(lengths[position]),
        )
    total = int(lengths.sum())
    if total != num_values:
        raise InvalidArgumentError(
            f"lengths must sum to the number of values, {num_values}, found {total}; count each "
            "value in exactly one bag",
            total=total,
            num_values=num_values,
        )


def _format_counts(tensor: Tensor) -> str:
    numbers = tensor.detach().cpu().tolist()
    if len(numbers) <= 8:
        return str(numbers)
    return f"[{', '.join(str(each) for each in numbers[:8])}, … ({len(numbers)} in all)]"
