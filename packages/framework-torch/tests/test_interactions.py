"""Cross networks, interactions and layers of models: their formulas, and TorchRec's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring.errors import InvalidArgumentError
from sparring_torch.models import (
    MLP,
    CrossNet,
    DenseArch,
    InteractionArch,
    InteractionDCNArch,
    InteractionProjectionArch,
    LowRankCrossNet,
    LowRankMixtureCrossNet,
    OverArch,
    VectorCrossNet,
)

WIDTH, LAYERS, RANK = 6, 3, 2


def filled(module: nn.Module) -> nn.Module:
    """Returns the module with nonzero biases."""
    torch.manual_seed(0)
    with torch.no_grad():
        for each in module.parameters():
            each.copy_(torch.randn_like(each))
    return module


def crossed(values: Tensor, layer: Callable[[Tensor, int], Tensor]) -> Tensor:
    found = values
    for number in range(LAYERS):
        found = values * layer(found, number) + found
    return found


def test_cross_networks_follow_their_formulas() -> None:
    values = torch.randn(5, WIDTH)
    full: Any = filled(CrossNet(WIDTH, LAYERS))
    wanted = crossed(values, lambda x, n: x @ full.layers[n].linear.weight.T + full.layers[n].bias)
    torch.testing.assert_close(full(values), wanted)
    low: Any = filled(LowRankCrossNet(WIDTH, LAYERS, RANK))
    assert [tuple(each.shape) for each in low.layers[0].parameters()] == [(2, 6), (6,), (6, 2)]
    wanted = crossed(
        values,
        lambda x, n: (
            x @ low.layers[n][0].weight.T @ low.layers[n][1].linear.weight.T + low.layers[n][1].bias
        ),
    )
    torch.testing.assert_close(low(values), wanted)
    vector: Any = filled(VectorCrossNet(WIDTH, LAYERS))
    found = values
    for layer, bias in zip(vector.layers, vector.biases, strict=True):
        found = values * (found * layer.weight[0]).sum(1)[:, None] + bias + found
    torch.testing.assert_close(vector(values), found)


@pytest.mark.parametrize("num_experts", [1, 3])
def test_a_mixture_weights_its_experts_by_their_gates(num_experts: int) -> None:
    mixture: Any = filled(LowRankMixtureCrossNet(WIDTH, LAYERS, num_experts, RANK, torch.tanh))
    values = torch.randn(5, WIDTH)

    def layer(x: Tensor, number: int) -> Tensor:
        own, total = mixture.layers[number], torch.zeros_like(x)
        gates = torch.ones(len(x), 1)
        if num_experts > 1:
            gates = torch.cat([x @ gate.weight.T for gate in own.gates], 1).softmax(1)
        for expert in range(num_experts):
            low = torch.tanh(x @ own.into[expert].weight.T)
            low = torch.tanh(low @ own.within[expert].weight.T)
            total = total + gates[:, [expert]] * (low @ own.out[expert].weight.T + own.bias)
        return total

    torch.testing.assert_close(mixture(values), crossed(values, layer))


def test_interactions_combine_numbers_and_embeddings() -> None:
    dense, sparse = torch.randn(4, 3), torch.randn(4, 2, 3)
    vectors = torch.cat([dense[:, None], sparse], 1)
    products = [(vectors[:, i] * vectors[:, j]).sum(1) for i, j in ((0, 1), (0, 2), (1, 2))]
    wanted = torch.cat([dense, torch.stack(products, 1)], 1)
    torch.testing.assert_close(InteractionArch(2)(dense, sparse), wanted)
    crossnet = VectorCrossNet(9, 2)
    found = InteractionDCNArch(2, crossnet)(dense, sparse)
    torch.testing.assert_close(found, crossnet(vectors.flatten(1)))
    branches = DenseArch(9, [6]), DenseArch(9, [3])
    left, right = (each(vectors.flatten(1)) for each in branches)
    products = [(left[:, :3] * right).sum(1), (left[:, 3:] * right).sum(1)]
    found = InteractionProjectionArch(2, *branches)(dense, sparse)
    torch.testing.assert_close(found, torch.cat([dense, torch.stack(products, 1)], 1))


def test_layers_have_the_configured_activations() -> None:
    values = torch.randn(4, 3)
    for activation, function in (
        ("relu", torch.relu),
        ("sigmoid", torch.sigmoid),
        (nn.Tanh(), torch.tanh),
        (torch.tanh, torch.tanh),
    ):
        mlp = MLP(3, [5, 2], activation=activation)
        linear = [each for each in mlp if isinstance(each, nn.Linear)]
        wanted = function(linear[1](function(linear[0](values))))
        torch.testing.assert_close(mlp(values), wanted)
    over = OverArch(3, [5, 1])
    assert isinstance(over[-1], nn.Linear)
    assert all(each.bias is None for each in MLP(3, [5], False) if isinstance(each, nn.Linear))
    assert MLP(3, [5], dtype=torch.float64, device="meta")[0].weight.dtype == torch.float64
    with pytest.raises(InvalidArgumentError, match="found activation 'swish', expected 'relu'"):
        MLP(3, [5], activation="swish")


@pytest.mark.parametrize("kind", ["CrossNet", "LowRankCrossNet", "VectorCrossNet", "mixture"])
def test_cross_networks_equal_torchrec(kind: str) -> None:
    theirs: Any = pytest.importorskip(
        "torchrec.modules.crossnet", reason="TorchRec is a peer of benchmarks only"
    )
    ours, other = (
        globals().get(kind, LowRankMixtureCrossNet),
        getattr(theirs, kind, theirs.LowRankMixtureCrossNet),
    )
    sizes = {"LowRankCrossNet": [RANK], "mixture": [3, RANK]}.get(kind, [])
    mine: Any = filled(ours(WIDTH, LAYERS, *sizes))
    peer = other(WIDTH, LAYERS, *sizes)
    for number, layer in enumerate(mine.layers):
        bias = mine.biases[number] if kind == "VectorCrossNet" else _bias(layer)
        peer.bias[number].data.copy_(bias.view_as(peer.bias[number]))
        if kind == "mixture":
            parts = [
                (peer.V_kernels, layer.into),
                (peer.C_kernels, layer.within),
                (peer.U_kernels, layer.out),
            ]
            for kernels, part in parts:
                kernels[number].data.copy_(torch.stack([each.weight for each in part]))
        elif kind == "LowRankCrossNet":
            peer.V_kernels[number].data.copy_(layer[0].weight)
            peer.W_kernels[number].data.copy_(layer[1].linear.weight)
        else:
            kernel = layer.linear.weight if kind == "CrossNet" else layer.weight.T
            peer.kernels[number].data.copy_(kernel)
    if kind == "mixture":  # its gates are shared by all layers
        for gate, own in zip(peer.gates, mine.layers[0].gates, strict=True):
            gate.weight.data.copy_(own.weight)
        for layer in mine.layers[1:]:
            layer.gates = mine.layers[0].gates
    values = torch.randn(5, WIDTH)
    torch.testing.assert_close(mine(values), peer(values))


def _bias(layer: Any) -> Tensor:
    found: Any = layer[1].bias if isinstance(layer, nn.Sequential) else layer.bias
    assert isinstance(found, Tensor)
    return found
