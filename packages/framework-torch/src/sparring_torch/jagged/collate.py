"""Collates examples with bags of ids, as ``collate_fn`` of `torch.utils.data.DataLoader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.ids import to_ids, to_tensor
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor

__all__ = ["collate_jagged"]


def collate_jagged(
    examples: Sequence[Mapping[str, Any]], features: Sequence[str]
) -> tuple[KeyedJaggedTensor, dict[str, Any]]:
    """Collates some features to a `KeyedJaggedTensor`, and all other values with `default_collate`.

    ``DataLoader(examples, collate_fn=functools.partial(collate_jagged, features=["user", "items"]))``

    Args:
        examples: mappings; the value of a feature is one id, or a list, an array or a tensor ``(n,)``
            of any length.
        features: names of the features.

    Returns:
        The ids, feature after feature, and a dict of the other values.

    Raises:
        InvalidArgumentError: an example is not a mapping, or does not have one of the features.

    Examples:
        >>> from sparring_torch import collate_jagged
        >>> examples = [{"items": [1, 2], "label": 1.0}, {"items": 3, "label": 0.0}]
        >>> ids, others = collate_jagged(examples, ["items"])
        >>> ids["items"].to_dense()
        [tensor([1, 2]), tensor([3])]
    """
    bags: list[torch.Tensor] = []
    for feature in features:
        for number, example in enumerate(examples):
            if not isinstance(example, Mapping) or feature not in example:
                found = list(example) if isinstance(example, Mapping) else type(example).__name__
                raise InvalidArgumentError(
                    f"collate_jagged: example {number} has no feature {feature!r}, found {found}; give "
                    "mappings, with an empty list if there are no ids",
                    feature=feature,
                )
            bags.append(to_tensor(example[feature], f"feature {feature!r}").reshape(-1))
    named = set(features)
    others = [
        {name: value for name, value in example.items() if name not in named}
        for example in examples
    ]
    if len({bag.dtype for bag in bags}) > 1:  # torch.cat cannot promote unsigned integers
        bags = [to_ids(bag, "collate_jagged") for bag in bags]
    lengths = torch.tensor([len(bag) for bag in bags], dtype=torch.int32)
    values = torch.cat(bags) if bags else torch.empty(0, dtype=torch.int64)
    ids = KeyedJaggedTensor(list(features), values, lengths=lengths, stride=len(examples))
    return ids, default_collate(others) if others and others[0] else {}
