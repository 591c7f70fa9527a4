"""Parts of a `KeyedJaggedTensor`: bags of its features; and batches as trees of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError

__all__ = [
    "check_order",
    "check_strides",
    "arrange_inverse",
    "concatenate_parts",
    "register_batch",
    "register_tree",
    "find_shared_stride",
]


def find_shared_stride(num_keys: int, num_bags: int, given: int | None) -> int:
    """Bags of each feature, where all have as many.

    Raises:
        InvalidArgumentError: they do not share out.
    """
    if num_keys == 0:
        if num_bags:
            raise InvalidArgumentError(
                f"a KeyedJaggedTensor without features has no bags, found {num_bags}; name the "
                "features in keys",
                num_bags=num_bags,
            )
        return given or 0
    if num_bags % num_keys or (given is not None and given * num_keys != num_bags):
        wanted = f"{given} for each" if given is not None else "as many for each"
        raise InvalidArgumentError(
            f"{num_bags} bags do not share out to {num_keys} features, {wanted}; give one length "
            "for each feature and example",
            num_bags=num_bags,
            num_keys=num_keys,
            stride=given,
        )
    return num_bags // num_keys


def check_order(order: Sequence[int], num_keys: int, as_tensor: Tensor | None) -> None:
    """Checks places of features.

    Raises:
        InvalidArgumentError: if a place is out of range or repeated, or the tensor has other places.
    """
    if as_tensor is not None and as_tensor.tolist() != order:
        raise InvalidArgumentError(
            f"permute: found indices {order} and indices_tensor {as_tensor.tolist()}; give indices alone"
        )
    if not all(0 <= each < num_keys for each in order) or len(set(order)) != len(order):
        raise InvalidArgumentError(
            f"permute: indices must be different places from 0 to {num_keys - 1}, found {order}"
        )


def check_strides(names: Sequence[str], strides: Sequence[int], num_bags: int) -> None:
    """Checks the number of bags of each feature.

    Raises:
        InvalidArgumentError: not one number for each feature, or not all bags.
    """
    if len(strides) != len(names) or sum(strides) != num_bags or min(strides, default=0) < 0:
        raise InvalidArgumentError(
            f"stride_per_key_per_rank must have one list for each of {len(names)} features, which "
            f"add up to the {num_bags} bags; found {list(strides)}",
            num_bags=num_bags,
        )


def arrange_inverse(names: Sequence[str], keys: Sequence[str], indices: Tensor) -> Tensor:
    """Inverse indices ``(features, examples)`` in the order of the features.

    Raises:
        InvalidArgumentError: a feature has none, or another shape.
    """
    rows = {name: row for row, name in enumerate(keys)}
    missing = [name for name in names if name not in rows]
    if indices.dim() != 2 or len(indices) != len(rows) or missing:
        raise InvalidArgumentError(
            f"inverse_indices must be names and (names, examples), for all features; found "
            f"{list(keys)} and shape {tuple(indices.shape)} for features {list(names)}"
        )
    order = [rows[name] for name in names]
    return indices if order == list(range(len(indices))) else indices[order]


def concatenate_parts(parts: Sequence[Tensor | None], what: str) -> Tensor | None:
    """One tensor of what several parts have; None where none of them has it.

    Raises:
        InvalidArgumentError: some have it and others do not.
    """
    given = [each for each in parts if each is not None]
    if not given:
        return None
    if len(given) != len(parts):
        raise InvalidArgumentError(
            f"all parts must have {what} or none, found {what} on {len(given)} of {len(parts)}; "
            "give them to the others too"
        )
    return torch.cat(given)


def register_tree(
    kind: type,
    leaves: Callable[[Any], tuple[list[Any], list[Any]]],
    from_leaves: Callable[[Iterable[Any], list[Any]], Any],
    names: Sequence[str],
) -> None:
    """Makes a class a tree of tensors for torch.

    `torch.export` then accepts its objects as inputs and outputs, and programs are loaded with
    `weights_only`.

    Args:
        kind: the class.
        leaves: returns the tensors of an object, and plain lists with the rest.
        from_leaves: the inverse; it may be called with other leaves than tensors.
        names: of the leaves, in order; an object may have fewer.
    """

    def named_leaves(tree: Any) -> tuple[list[tuple[Any, Any]], list[Any]]:
        parts, context = leaves(tree)
        keys: Any = map(torch.utils._pytree.MappingKey, names[: len(parts)])
        return list(zip(keys, parts, strict=True)), context

    torch.utils._pytree.register_pytree_node(
        kind,
        leaves,
        from_leaves,
        flatten_with_keys_fn=named_leaves,
        serialized_type_name=f"sparring_torch.{kind.__name__}",
    )
    torch.serialization.add_safe_globals([kind])


def _batch_leaves(batch: Any) -> tuple[list[Any], list[Any]]:
    """Tensors of a `KeyedJaggedTensor`, and the rest of it."""
    leaves = [batch._values, batch._weights, batch._lengths]
    # Most batches have none, and who describes their shapes need not know of it.
    leaves += [] if batch._inverse is None else [batch._inverse]
    return leaves, [batch._keys, batch._strides]


def _batch_from_leaves(kind: Any, leaves: Iterable[Any], context: list[Any]) -> Any:
    """Returns the `KeyedJaggedTensor` that these parts are of."""
    values, weights, lengths, *rest = leaves
    inverse = rest[0] if rest else None
    keys, strides = context
    # Not always tensors: torch maps trees of them to trees of names and the like.
    stride = lengths.shape[0] // max(1, len(keys)) if isinstance(lengths, Tensor) else 0
    if strides is not None:
        stride = inverse.shape[1] if isinstance(inverse, Tensor) else max(strides)
    return kind._from_valid(
        keys, values, weights, lengths, stride, strides=strides, inverse=inverse
    )


def register_batch(kind: Any) -> None:
    """Makes `KeyedJaggedTensor` a tree of tensors."""
    names = ("values", "weights", "lengths", "inverse_indices")
    register_tree(kind, _batch_leaves, partial(_batch_from_leaves, kind), names)
