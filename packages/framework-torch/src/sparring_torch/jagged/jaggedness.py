"""Lengths and offsets: the two ways to say how a flat tensor falls into bags.

For bags of 2, 3 and 1 values::

    lengths            [2, 3, 1]
    offsets            [0, 2, 5, 6]      where each bag starts, and the end
    offsets, starts    [0, 2, 5]         accepted too; the end is the number of values
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
"""Lengths or offsets as users give them: ``(bags,)`` whole numbers, a tensor or a list."""


def to_values(values: object, what: str) -> Tensor:
    """A tensor of at least one dimension from a tensor, an array or a list.

    Raises:
        InvalidArgumentError: no such thing, or a scalar.
    """
    if not isinstance(values, Tensor):
        try:
            values = torch.as_tensor(values)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(
                f"{what} must be a tensor or a list of numbers, found "
                f"{type(values).__name__}: {error}"
            ) from error
        if values.numel() == 0:
            values = values.to(torch.int64)
    if values.dim() == 0:
        raise InvalidArgumentError(
            f"{what} must have at least one dimension, found a scalar; give a list of one",
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
    """Lengths ``(bags,)`` of `num_values` values, from either description.

    Args:
        num_values: values in all bags together.
        lengths: of each bag; goes before `offsets`.
        offsets: where each bag starts, with or without the end.
        num_keys: features that the bags are shared out to evenly; settles whether an end is there
            where the last offset alone does not.
        device: where the result shall live.

    Raises:
        InvalidArgumentError: neither is given, wrong rank, not whole, negative, lengths that do
            not add up to `num_values`, offsets that fall or do not start at 0, both given and at
            odds.
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
                    f"lengths and offsets disagree: lengths are {_format_counts(checked)}, offsets give "
                    f"{_format_counts(other)}; give one of the two"
                )
        return checked
    if offsets is not None:
        return offsets_to_lengths(offsets, num_values, num_keys=num_keys).to(device)
    raise InvalidArgumentError(
        "a jagged tensor needs lengths or offsets, found neither; give lengths=[…], one number "
        "a bag"
    )


def check_values(tensor: Tensor, operation: str) -> None:
    """Checks that a tensor has values.

    Raises:
        InvalidArgumentError: if it is on the device ``meta``.
    """
    if tensor.is_meta:
        raise InvalidArgumentError(
            f"{operation}: found a batch on device 'meta', which has shapes and no values; move a batch "
            "with values here: batch.to('cpu')"
        )


def lengths_to_offsets(lengths: Tensor) -> Tensor:
    """Offsets ``(bags + 1,)`` of the lengths' dtype, the end included."""
    offsets = torch.zeros(lengths.numel() + 1, dtype=lengths.dtype, device=lengths.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def offsets_to_lengths(offsets: Counts, num_values: int, *, num_keys: int = 1) -> Tensor:
    """Lengths ``(bags,)`` from offsets with or without the end.

    Raises:
        InvalidArgumentError: wrong rank, not whole, not from 0 upward, beyond `num_values`.
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
            f"offsets must start at 0, found {_format_counts(checked)}; the first bag starts at value 0",
            offsets=checked.tolist(),
        )
    steps = checked[1:] - checked[:-1]
    if count > 1 and int(steps.min()) < 0:
        position = int((steps < 0).nonzero()[0])
        raise InvalidArgumentError(
            f"offsets must not fall, found {int(checked[position + 1])} after {int(checked[position])} "
            f"at position {position + 1}; an empty bag repeats the offset before it",
            position=position + 1,
        )
    last = int(checked[-1])
    if last > num_values:
        raise InvalidArgumentError(
            f"offsets reach {last}, but there are {num_values} values; the last offset must be "
            "a start within the values, or their number",
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
            f"{what} must be whole numbers, found {_format_counts(tensor)} of dtype {tensor.dtype}",
            dtype=str(tensor.dtype),
        )
    return tensor.to(torch.int64)


def _check_lengths(lengths: Tensor, num_values: int) -> None:
    if lengths.is_meta or (torch.compiler.is_compiling() and torch.compiler.is_exporting()):
        return  # they have no values yet: the program's lookup checks them
    if lengths.numel() and int(lengths.min()) < 0:
        position = int((lengths < 0).nonzero()[0])
        raise InvalidArgumentError(
            f"lengths must not be negative, found {int(lengths[position])} at position {position}; "
            "an empty bag has length 0",
            position=position,
            length=int(lengths[position]),
        )
    total = int(lengths.sum())
    if total != num_values:
        raise InvalidArgumentError(
            f"lengths add up to {total}, but there are {num_values} values; each value must "
            "belong to one bag",
            total=total,
            num_values=num_values,
        )


def _format_counts(tensor: Tensor) -> str:
    numbers = tensor.detach().cpu().tolist()
    if len(numbers) <= 8:
        return str(numbers)
    return f"[{', '.join(str(each) for each in numbers[:8])}, … ({len(numbers)} in all)]"
