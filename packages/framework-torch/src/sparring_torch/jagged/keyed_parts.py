"""Helper functions of `KeyedJaggedTensor`, and registration of batches as pytrees."""

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
    """Returns the number of bags per feature, if it is the same for all features.

    Raises:
        InvalidArgumentError: the bags cannot be divided equally.
    """
    if num_keys == 0:
        if num_bags:
            raise InvalidArgumentError(
                f"a KeyedJaggedTensor without features cannot have bags, found {num_bags}; name the "
                "features in keys",
                num_bags=num_bags,
            )
        return given or 0
    if num_bags % num_keys or (given is not None and given * num_keys != num_bags):
        wanted = f"{given} per feature" if given is not None else "equally many per feature"
        raise InvalidArgumentError(
            f"found {num_bags} bags for {num_keys} features, expected {wanted}; give one length "
            "per feature and example",
            num_bags=num_bags,
            num_keys=num_keys,
            stride=given,
        )
    return num_bags // num_keys


def check_order(order: Sequence[int], num_keys: int, as_tensor: Tensor | None) -> None:
    """Checks positions of features.

    Raises:
        InvalidArgumentError: a position is out of range or repeated, or the tensor differs.
    """
    if as_tensor is not None and as_tensor.tolist() != order:
        raise InvalidArgumentError(
            f"permute: found indices {order}, but indices_tensor {as_tensor.tolist()}; give only "
            "indices"
        )
    if not all(0 <= each < num_keys for each in order) or len(set(order)) != len(order):
        raise InvalidArgumentError(
            f"permute: indices must be distinct positions from 0 to {num_keys - 1}, found {order}"
        )


def check_strides(names: Sequence[str], strides: Sequence[int], num_bags: int) -> None:
    """Checks the number of bags per feature.

    Raises:
        InvalidArgumentError: there is not one number per feature, or the sum is wrong.
    """
    if len(strides) != len(names) or sum(strides) != num_bags or min(strides, default=0) < 0:
        raise InvalidArgumentError(
            f"stride_per_key_per_rank must have one list for each of {len(names)} features, which "
            f"sum to the {num_bags} bags, found {list(strides)}",
            num_bags=num_bags,
        )


def arrange_inverse(names: Sequence[str], keys: Sequence[str], indices: Tensor) -> Tensor:
    """Returns inverse indices ``(features, examples)`` in the order of the features.

    Raises:
        InvalidArgumentError: a feature has no indices, or the shape is wrong.
    """
    rows = {name: row for row, name in enumerate(keys)}
    missing = [name for name in names if name not in rows]
    if indices.dim() != 2 or len(indices) != len(rows) or missing:
        raise InvalidArgumentError(
            f"inverse_indices must be (names, tensor (names, examples)) for all features, found "
            f"{list(keys)} and shape {tuple(indices.shape)} for features {list(names)}"
        )
    order = [rows[name] for name in names]
    return indices if order == list(range(len(indices))) else indices[order]


def check_inverse(inverse: Tensor, num_bags: int) -> None:
    """Checks inverse indices on the CPU; on a GPU, torch checks them.

    Raises:
        InvalidArgumentError: an index is not the number of a bag.
    """
    if inverse.device.type != "cpu" or not inverse.numel() or torch.compiler.is_compiling():
        return
    least, most = (int(each) for each in torch.aminmax(inverse))
    if least < 0 or most >= num_bags:
        raise InvalidArgumentError(
            f"inverse_indices: found {least if least < 0 else most}, expected numbers of bags from 0 to "
            f"{num_bags - 1}; correct the indices, or give as many lengths as bags",
            value=least if least < 0 else most,
        )


def concatenate_parts(parts: Sequence[Tensor | None], what: str) -> Tensor | None:
    """Concatenates parts, or returns None if all parts are None.

    Raises:
        InvalidArgumentError: only some of the parts are None.
    """
    given = [each for each in parts if each is not None]
    if not given:
        return None
    if len(given) != len(parts):
        raise InvalidArgumentError(
            f"either all parts or none must have {what}, found {what} on {len(given)} of {len(parts)}; "
            "add them to the others"
        )
    return torch.cat(given)


def register_tree(
    kind: type,
    leaves: Callable[[Any], tuple[list[Any], list[Any]]],
    from_leaves: Callable[[Iterable[Any], list[Any]], Any],
    names: Sequence[str],
) -> None:
    """Registers a class as a pytree of tensors.

    `torch.export` then accepts its objects as inputs and outputs, and programs are loaded with
    `weights_only`.

    Args:
        kind: the class.
        leaves: returns the tensors of an object, and plain lists with the rest.
        from_leaves: the inverse; it may be called with other leaves than tensors.
        names: names of the leaves, in order; an object may have fewer leaves.
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
    """Returns the tensors of a `KeyedJaggedTensor`, and its other parts."""
    leaves = [batch._values, batch._weights, batch._lengths]
    # Omitted if None, so that users need not specify dynamic shapes for it.
    leaves += [] if batch._inverse is None else [batch._inverse]
    return leaves, [batch._keys, batch._strides]


def _batch_from_leaves(kind: Any, leaves: Iterable[Any], context: list[Any]) -> Any:
    """Creates a `KeyedJaggedTensor` from these parts."""
    values, weights, lengths, *rest = leaves
    inverse = rest[0] if rest else None
    keys, strides = context
    # Leaves are not always tensors: torch also maps pytrees to pytrees of names, for example.
    stride = lengths.shape[0] // max(1, len(keys)) if isinstance(lengths, Tensor) else 0
    if strides is not None:
        stride = inverse.shape[1] if isinstance(inverse, Tensor) else max(strides)
    return kind._from_valid(
        keys, values, weights, lengths, stride, strides=strides, inverse=inverse
    )


def register_batch(kind: Any) -> None:
    """Registers `KeyedJaggedTensor` as a pytree of tensors."""
    names = ("values", "weights", "lengths", "inverse_indices")
    register_tree(kind, _batch_leaves, partial(_batch_from_leaves, kind), names)
