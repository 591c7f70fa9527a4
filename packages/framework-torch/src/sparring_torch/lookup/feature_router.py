"""Finds, in a batch, the features that tables look up."""

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
        features: for each table, the features that look up there, each list in order.
        owner: name of the module in messages.
        unknown: ``ignore`` or ``reject``: features of a batch that no table looks up.

    Raises:
        InvalidArgumentError: if `unknown` has another value.
    """

    def __init__(
        self, features: Sequence[Sequence[str]], owner: str, unknown: str = "ignore"
    ) -> None:
        if unknown not in ("ignore", "reject"):
            raise InvalidArgumentError(
                f"{owner}: found unknown_features={unknown!r}; give 'ignore' or 'reject'"
            )
        self._rejects_unknown = unknown == "reject"
        self._features = [list(each) for each in features]
        self.names = [name for each in self._features for name in each]
        """Each looked-up feature, table by table."""
        self._known = set(self.names)
        # A prefix that no feature of a table begins with.
        self._unknown = "_" * (1 + max(map(len, self.names), default=0))
        self._owner = owner
        self._planned_for: list[str] | None = None
        self._plan: list[int] = []

    def route(self, batch: KeyedJaggedTensor, *, is_weighted: bool) -> Bags:
        """The ids of the batch, and where those of each table's features are, table by table.

        Raises:
            InvalidArgumentError: the batch lacks a feature, has an unknown one that is rejected, has no
                weights where they are needed, or holds what is no id.
        """
        positions = self.positions(batch)
        check_values(batch.values(), self._owner)
        batch = batch.with_even_stride()
        weights = batch.weights() if is_weighted else None
        values = batch.values()
        if values.dtype is torch.int64:
            ids = values.detach().cpu().contiguous().numpy()
        else:
            # Ids that are not exact are named with their feature.
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
        """Which feature of the batch each looked-up feature is, table by table.

        Raises:
            InvalidArgumentError: the batch lacks a feature, or has an unknown one that is rejected.
        """
        if not isinstance(batch, KeyedJaggedTensor):
            reject_proxy(batch, self._owner)
            raise InvalidArgumentError(
                f"{self._owner} takes a KeyedJaggedTensor, found {type(batch).__name__}"
            )
        if batch.keys() != self._planned_for:
            self._plan = self._find_positions(batch.keys())
            self._planned_for = list(batch.keys())
        return self._plan

    def op_positions(self, batch: KeyedJaggedTensor) -> list[int]:
        """`places`, and at the end the number of features of the batch, for operators of torch."""
        return [*self.positions(batch), len(batch.keys())]

    def batch(
        self, ids: Tensor, lengths: Tensor, weights: Tensor | None, positions: Sequence[int]
    ) -> KeyedJaggedTensor:
        """Returns the batch of which operators of torch received these parts.

        Args:
            lengths: of bags; each feature has as many.
            places: `op_positions` of the batch.
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
                    f"feature {name!r} of the batch has no table in this {self._owner}; "
                    f"{format_suggestion(name, sorted(self._known))}. Leave it out with permute(), "
                    f"name it "
                    "in a table's feature_names, or give unknown_features='ignore'",
                    feature=name,
                )
        for each in self._features:
            for name in each:
                if name not in positions:
                    raise InvalidArgumentError(
                        f"this {self._owner} needs feature {name!r}, which the batch lacks; "
                        + format_suggestion(name, keys),
                        feature=name,
                    )
        return [positions[name] for each in self._features for name in each]
