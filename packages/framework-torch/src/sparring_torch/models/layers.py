"""Layers of several models."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from sparring.errors import InvalidArgumentError
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import table_features

__all__ = ["MLP", "DenseArch", "OverArch", "find_common_dim"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid}


class _Activation(nn.Module):
    """A layer that applies a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, values: Tensor) -> Tensor:
        return self._function(values)


class MLP(nn.Sequential):
    """Linear layers, each followed by an activation: ``(b, in_size)`` → ``(b, layer_sizes[-1])``.

    Args:
        in_size: width of the input.
        layer_sizes: widths of the layers.
        bias: whether layers have a bias.
        activation: ``relu``, ``sigmoid``, a module, or a function of a tensor; layers share a module.
        device: device of the parameters.
        dtype: dtype of the parameters.
        activation_on_last: whether the last layer has the activation, too.

    Raises:
        InvalidArgumentError: `activation` is another name.
    """

    def __init__(
        self,
        in_size: int,
        layer_sizes: Sequence[int],
        bias: bool = True,
        activation: str | nn.Module | Callable[[Tensor], Tensor] = "relu",
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        activation_on_last: bool = True,
    ) -> None:
        layers: list[nn.Module] = []
        for below, above in zip([in_size, *layer_sizes], layer_sizes, strict=False):
            layers.append(nn.Linear(below, above, bias, device=device, dtype=dtype))
            layers.append(_activation(activation))
        super().__init__(*(layers if activation_on_last else layers[:-1]))


class DenseArch(MLP):
    """Layers for dense features: ``(b, in_features)`` → ``(b, layer_sizes[-1])``.

    Args:
        in_features: width of the input.
        layer_sizes: widths of the layers; all have a ReLU.
        device: device of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        layer_sizes: Sequence[int],
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(in_features, layer_sizes, device=device)


class OverArch(MLP):
    """Layers after the interaction: ``(b, in_features)`` → logits ``(b, layer_sizes[-1])``.

    Args:
        in_features: width of the input.
        layer_sizes: widths of the layers; all but the last have a ReLU.
        device: device of the parameters.
    """

    def __init__(
        self,
        in_features: int,
        layer_sizes: Sequence[int],
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__(in_features, layer_sizes, device=device, activation_on_last=False)


def _activation(given: str | nn.Module | Callable[[Tensor], Tensor]) -> nn.Module:
    if isinstance(given, nn.Module):
        return given
    if not isinstance(given, str):
        return _Activation(given)
    if given not in _ACTIVATIONS:
        raise InvalidArgumentError(
            f"MLP: found activation {given!r}, expected 'relu', 'sigmoid', a module or a function"
        )
    return _ACTIVATIONS[given]()


def find_common_dim(collection: EmbeddingBagCollection, model: str) -> tuple[int, int]:
    """Returns the number of features of a collection, and the common dim of its tables.

    Raises:
        InvalidArgumentError: the tables differ in dim.
    """
    configs = collection.embedding_bag_configs()
    dims = sorted({config.embedding_dim for config in configs})
    if len(dims) != 1:
        raise InvalidArgumentError(
            f"{model}: all tables must have one embedding_dim, because products of embeddings are "
            f"computed, found {dims}"
        )
    return sum(len(table_features(config)) for config in configs), dims[0]
