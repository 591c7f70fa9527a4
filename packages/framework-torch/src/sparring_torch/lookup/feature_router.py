"""Finds the features of tables in a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparring.adapter import format_suggestion
from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.ids import to_ids
from sparring_torch.jagged.jaggedness import check_values
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.lookup.batch_lookup import Bags
from sparring_torch.misuse import reject_proxy

__all__ = ["FeatureRouter"]


class FeatureRouter:
    """Finds the ids of each table in a batch.

    Args:
        features: the features of each table, in order.
        owner: name of the module in messages.
        unknown: ``ignore`` or ``reject`` features of a batch that belong to no table.

    Raises:
        InvalidArgumentError: `unknown` is not one of the allowed values.
    """

    def __init__(
        self, features: Sequence[Sequence[str]], owner: str, unknown: str = "ignore"
    ) -> None:
        if unknown not in ("ignore", "reject"):
            raise InvalidArgumentError(
                f"{owner}: found unknown_features={unknown!r}, expected 'ignore' or 'reject'"
            )
        self._rejects_unknown = unknown == "reject"
        self._features = [list(each) for each in features]
        self.names = [name for each in self._features for name in each]
        """Looked-up features, table by table."""
        self._known = set(self.names)
        # A prefix that no name of a feature starts with.
        self._unknown = "_" * (1 + max(map(len, self.names), default=0))
        self._owner = owner
        self._planned_for: list[str] | None = None
        self._plan: list[int] = []

    def route(self, batch: KeyedJaggedTensor, *, is_weighted: bool) -> Bags:
        """Returns the ids of the batch with the positions of each table's features.

        Raises:
            InvalidArgumentError: a feature is missing, an unknown one is rejected, required weights
                are missing, or values are not valid ids.
        """
        positions = self.positions(batch)
        check_values(batch.values(), self._owner)
        batch = batch.with_even_stride()
        weights = batch.weights() if is_weighted else None
        values = batch.values()
        if values.dtype is torch.int64:
            ids = values.detach().cpu().contiguous().numpy()
        else:
            # Convert per feature, so that an error names the feature.
            ids = torch.cat(
                [
                    to_ids(part.values(), f"feature {name!r}")
                    if name in self._known
                    else torch.zeros(len(part.values()), dtype=torch.int64)
                    for name, part in batch.to_dict().items()
                ]
            ).numpy()
        offsets = batch.offsets().cpu().numpy().astype(np.int64, copy=False)
        return Bags(ids, np.ascontiguousarray(offsets), weights, positions, batch.stride())

    def positions(self, batch: KeyedJaggedTensor) -> list[int]:
        """Returns the position in the batch of each looked-up feature, table by table.

        Raises:
            InvalidArgumentError: a feature is missing, or an unknown one is rejected.
        """
        if not isinstance(batch, KeyedJaggedTensor):
            reject_proxy(batch, self._owner)
            raise InvalidArgumentError(
                f"{self._owner}: found {type(batch).__name__}, expected a KeyedJaggedTensor"
            )
        if batch.keys() != self._planned_for:
            self._plan = self._find_positions(batch.keys())
            self._planned_for = list(batch.keys())
        return self._plan

    def op_positions(self, batch: KeyedJaggedTensor) -> list[int]:
        """Returns `positions`, followed by the number of features of the batch, for operators."""
        return [*self.positions(batch), len(batch.keys())]

    def batch(
        self, ids: Tensor, lengths: Tensor, weights: Tensor | None, positions: Sequence[int]
    ) -> KeyedJaggedTensor:
        """Recreates the batch from the parts that an operator of torch received.

        Args:
            lengths: lengths of the bags; each feature has the same number of bags.
            positions: `op_positions` of the batch.
        """
        *known, num_features = positions
        names = dict(zip(known, self.names, strict=True))
        keys = [
            names.get(position, f"{self._unknown}{position}") for position in range(num_features)
        ]
        stride = len(lengths) // len(keys)
        return KeyedJaggedTensor._from_valid(keys, ids, weights, lengths, stride)

    def _find_positions(self, keys: Sequence[str]) -> list[int]:
        positions = {name: position for position, name in enumerate(keys)}
        for name in keys:
            if self._rejects_unknown and name not in self._known:
                raise InvalidArgumentError(
                    f"{self._owner}: feature {name!r} of the batch belongs to no table; "
                    f"{format_suggestion(name, sorted(self._known))}. Remove it with permute(), add "
                    "it to feature_names of a table, or set unknown_features='ignore'",
                    feature=name,
                )
        for each in self._features:
            for name in each:
                if name not in positions:
                    raise InvalidArgumentError(
                        f"{self._owner}: the batch has no feature {name!r}; "
                        + format_suggestion(name, keys),
                        feature=name,
                    )
        return [positions[name] for each in self._features for name in each]
