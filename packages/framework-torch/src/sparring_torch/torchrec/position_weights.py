"""Weights that are learned for each position in a bag."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor

__all__ = ["PositionWeightedModule", "PositionWeightedModuleCollection"]


class PositionWeightedModule(nn.Module):
    """Adds weights to the ids of one feature, according to their positions in bags.

    Args:
        max_feature_length: number of weights, which is the maximum number of ids in a bag.
        device: device of the weights, which are initialized to 1.
    """

    def __init__(self, max_feature_length: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.position_weight = nn.Parameter(torch.ones(max_feature_length, device=device))

    def forward(self, features: JaggedTensor) -> JaggedTensor:
        """Returns the same ids with ``(n,)`` weights.

        Raises:
            InvalidArgumentError: a bag is longer than `max_feature_length`.
        """
        weights = _weights(features, self.position_weight, "this feature")
        return JaggedTensor(features.values(), weights, features.lengths())


class PositionWeightedModuleCollection(nn.Module):
    """Adds weights to the ids of some features, according to their positions. Ids of other features
    get the weight 1.

    Pass the result to an `EmbeddingBagCollection` with ``is_weighted=True``.

    Args:
        max_feature_lengths: feature → maximum number of ids in a bag.
        device: device of the weights, which are initialized to 1.
    """

    def __init__(
        self,
        max_feature_lengths: Mapping[str, int],
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.position_weights = nn.ParameterDict(
            {
                name: nn.Parameter(torch.ones(length, device=device))
                for name, length in max_feature_lengths.items()
            }
        )

    def forward(self, features: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Returns the same ids with ``(n,)`` weights.

        Raises:
            InvalidArgumentError: a bag is longer than its maximum.
        """
        weights = [
            _weights(part, self.position_weights[name], f"feature {name!r}")
            if name in self.position_weights
            else torch.ones(len(part.values()), device=part.device())
            for name, part in features.to_dict().items()
        ]
        return KeyedJaggedTensor(
            features.keys(),
            features.values(),
            torch.cat(weights) if weights else None,
            features.lengths(),
            stride_per_key_per_rank=features.stride_per_key_per_rank(),
            inverse_indices=features.inverse_indices_or_none(),
        )


def _weights(features: JaggedTensor, weights: Tensor, feature: str) -> Tensor:
    """Returns ``(n,)`` weights of the ids' positions in their bags."""
    lengths, num_ids = features.lengths(), len(features.values())
    if num_ids and int(lengths.max()) > len(weights):
        raise InvalidArgumentError(
            f"{feature}: found a bag of {int(lengths.max())} ids, but weights for {len(weights)} "
            "positions; truncate the bag, or increase max_feature_length"
        )
    begins = torch.repeat_interleave(features.offsets()[:-1], lengths, output_size=num_ids)
    return weights[torch.arange(num_ids, device=begins.device) - begins]
