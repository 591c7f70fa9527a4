"""Cross networks: polynomial interactions of features by layers.

x0 is the input of the network, and x the input of a layer:

    VectorCrossNet           x ← x0 * (w · x) + b + x          w (n,)
    CrossNet                 x ← x0 * (W x + b) + x            W (n, n)
    LowRankCrossNet          x ← x0 * (W V x + b) + x          V (r, n), W (n, r)
    LowRankMixtureCrossNet   x ← x0 * f(x) + x                 f: the sum over experts of
                                                               softmax(gate) * (W g(C g(V x)) + b)

Wang et al.: "Deep & cross network for ad click predictions", ADKDD 2017 (the vector form), and "DCN V2:
improved deep & cross network", WWW 2021 (the others).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

__all__ = ["CrossNet", "LowRankCrossNet", "LowRankMixtureCrossNet", "VectorCrossNet"]


class _Cross(nn.Module):
    """A cross network whose layers compute f.

    Args:
        layers: layers of the network.
    """

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - TorchRec's name
        """Returns interactions ``(b, in_features)`` of an input ``(b, in_features)``."""
        crossed = input
        for layer in self.layers:
            crossed = input * layer(crossed) + crossed
        return crossed


class CrossNet(_Cross):
    """Cross network with a full matrix per layer.

    Args:
        in_features: n.
        num_layers: number of layers.
    """

    def __init__(self, in_features: int, num_layers: int) -> None:
        super().__init__([_Affine(in_features, in_features) for _ in range(num_layers)])


class LowRankCrossNet(_Cross):
    """Cross network whose matrices have a low rank.

    Args:
        in_features: n.
        num_layers: number of layers.
        low_rank: r.
    """

    def __init__(self, in_features: int, num_layers: int, low_rank: int = 1) -> None:
        super().__init__(
            [
                nn.Sequential(_linear(in_features, low_rank), _Affine(low_rank, in_features))
                for _ in range(num_layers)
            ]
        )


class VectorCrossNet(nn.Module):
    """Cross network with a vector per layer.

    Args:
        in_features: n.
        num_layers: number of layers.
    """

    def __init__(self, in_features: int, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_linear(in_features, 1) for _ in range(num_layers))
        self.biases = nn.ParameterList(torch.zeros(in_features) for _ in range(num_layers))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - TorchRec's name
        """Returns interactions ``(b, in_features)`` of an input ``(b, in_features)``."""
        crossed = input
        for layer, bias in zip(self.layers, self.biases, strict=True):
            crossed = input * layer(crossed) + bias + crossed
        return crossed


class LowRankMixtureCrossNet(_Cross):
    """Cross network whose layers mix low-rank experts.

    Args:
        in_features: n.
        num_layers: number of layers.
        num_experts: number of experts per layer. Gates of several experts pass through a softmax.
        low_rank: r.
        activation: g.
    """

    def __init__(
        self,
        in_features: int,
        num_layers: int,
        num_experts: int = 1,
        low_rank: int = 1,
        activation: Callable[[Tensor], Tensor] = torch.relu,
    ) -> None:
        super().__init__(
            [_Mixture(in_features, num_experts, low_rank, activation) for _ in range(num_layers)]
        )


class _Affine(nn.Module):
    """``(b, num_in)`` → ``(b, num_out)``, with a bias that is initialized to zeros."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.linear = _linear(num_in, num_out)
        self.bias = nn.Parameter(torch.zeros(num_out))

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.linear(values) + self.bias
        return found


class _Mixture(nn.Module):
    def __init__(
        self,
        in_features: int,
        num_experts: int,
        low_rank: int,
        activation: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self._activation = activation
        self.into = nn.ModuleList(_linear(in_features, low_rank) for _ in range(num_experts))
        self.within = nn.ModuleList(_linear(low_rank, low_rank) for _ in range(num_experts))
        self.out = nn.ModuleList(_linear(low_rank, in_features) for _ in range(num_experts))
        num_gates = num_experts if num_experts > 1 else 0
        self.gates = nn.ModuleList(_linear(in_features, 1) for _ in range(num_gates))
        self.bias = nn.Parameter(torch.zeros(in_features))

    def forward(self, values: Tensor) -> Tensor:
        experts = [
            out(self._activation(within(self._activation(into(values))))) + self.bias
            for into, within, out in zip(self.into, self.within, self.out, strict=True)
        ]
        if not self.gates:
            alone: Tensor = experts[0]
            return alone
        gates = torch.cat([gate(values) for gate in self.gates], dim=1).softmax(dim=1)
        return torch.einsum("bne,be->bn", torch.stack(experts, dim=2), gates)


def _linear(num_in: int, num_out: int) -> nn.Linear:
    layer = nn.Linear(num_in, num_out, bias=False)
    nn.init.xavier_normal_(layer.weight)
    return layer
