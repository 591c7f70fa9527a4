"""Shares out the features of a batch to the tables that they look up in.

All features of a table are looked up together, so an id that two of them hold is deduplicated,
found and updated once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError
from sparring_torch.ids import ids_from
from sparring_torch.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.suggestions import suggestion

__all__ = ["FeatureRouter", "TableInput"]

Index = npt.NDArray[np.int64]


@dataclass(slots=True)
class TableInput:
    """The ids of all features of one table, feature after feature."""

    ids: Index
    """``(n,)``"""
    offsets: Index
    """``(features * stride + 1,)``, from 0 to n."""
    weights: Tensor | None
    """``(n,)``"""


class FeatureRouter:
    """Finds the ids of each table in a batch.

    Args:
        features: for each table, the features that look up there, each list in order.
        owner: how messages call the module.
    """

    def __init__(self, features: Sequence[Sequence[str]], owner: str) -> None:
        self._features = [list(each) for each in features]
        self._known = {name for each in self._features for name in each}
        self._owner = owner
        self._planned_for: list[str] | None = None
        self._plan: list[list[int]] = []

    def route(self, batch: KeyedJaggedTensor, *, is_weighted: bool) -> list[TableInput]:
        """One `TableInput` for each table.

        Raises:
            InvalidArgumentError: the batch lacks a feature, has one that no table takes, has no
                weights where they are needed, or holds what is no id.
        """
        if not isinstance(batch, KeyedJaggedTensor):
            raise InvalidArgumentError(
                f"{self._owner} takes a KeyedJaggedTensor, found {type(batch).__name__}"
            )
        if batch.keys() != self._planned_for:
            self._plan = self._planned(batch.keys())
            self._planned_for = list(batch.keys())
        weights = batch.weights() if is_weighted else None
        values = batch.values()
        if values.dtype is torch.int64:
            ids = ids_from(values, "the batch").numpy()
        else:
            # Ids that are not exact are named with their feature.
            ids = torch.cat(
                [
                    ids_from(part.values(), f"feature {name!r}")
                    for name, part in batch.to_dict().items()
                ]
            ).numpy()
        offsets = batch.offsets().cpu().numpy().astype(np.int64, copy=False)
        stride = batch.stride()
        return [self._part(ids, offsets, weights, stride, places) for places in self._plan]

    def _planned(self, keys: Sequence[str]) -> list[list[int]]:
        places = {name: place for place, name in enumerate(keys)}
        for name in keys:
            if name not in self._known:
                raise InvalidArgumentError(
                    f"feature {name!r} of the batch has no table in this {self._owner}; "
                    f"{suggestion(name, sorted(self._known))}. Leave it out with permute(), or "
                    "name it in a table's feature_names",
                    feature=name,
                )
        for each in self._features:
            for name in each:
                if name not in places:
                    raise InvalidArgumentError(
                        f"this {self._owner} needs feature {name!r}, which the batch lacks; "
                        + suggestion(name, keys),
                        feature=name,
                    )
        return [[places[name] for name in each] for each in self._features]

    @staticmethod
    def _part(
        ids: Index, offsets: Index, weights: Tensor | None, stride: int, places: list[int]
    ) -> TableInput:
        begin, end = places[0], places[-1] + 1
        if places == list(range(begin, end)):
            start, stop = int(offsets[begin * stride]), int(offsets[end * stride])
            part = offsets[begin * stride : end * stride + 1]
            return TableInput(
                ids[start:stop],
                part - start if start else part,
                None if weights is None else weights[start:stop],
            )
        spans = [
            slice(int(offsets[place * stride]), int(offsets[(place + 1) * stride]))
            for place in places
        ]
        joined = np.zeros(len(places) * stride + 1, np.int64)
        lengths = np.diff(offsets)
        np.cumsum(
            np.concatenate([lengths[p * stride : (p + 1) * stride] for p in places]),
            out=joined[1:],
        )
        return TableInput(
            np.concatenate([ids[span] for span in spans]),
            joined,
            None if weights is None else torch.cat([weights[span] for span in spans]),
        )
