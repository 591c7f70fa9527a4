"""Rows change exactly like the rows of a dense `torch.nn.EmbeddingBag`.

50 random steps of one to three micro-batches, with repeated ids, empty bags and ids at both ends
of int64; sum, mean and per-sample weights. The emulator, which is slow, runs 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparring import make_plugin_manager
from sparring.contracts import StorageDescriptor, TableConfig
from sparring.kernels.functions import initial_rows
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

DIM = 5
STEPS = {"cpu": 50, "emulated": 10}
KEYS = np.array([0, -1, -2, -3, 2**63 - 1, -(2**63), 193_609, *range(10**12, 10**12 + 23)])
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}
ADAM_EPS = 1e-30
"""SparseAdam adds eps before the bias correction, Adam after it: only eps distinguishes them."""

NATIVE: dict[str, tuple[type[torch.optim.Optimizer], dict[str, Any], bool]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}, False),
    "adagrad": (
        torch.optim.Adagrad,
        {"lr": 0.1, "initial_accumulator_value": 0.1, "lr_decay": 0.01},
        False,
    ),
    "adam": (torch.optim.Adam, {"lr": 0.01, "eps": ADAM_EPS}, True),
}


def here(array: Any) -> Tensor:
    """Returns a tensor on torch's current default device."""
    return torch.from_numpy(array).to(torch.get_default_device())


def random_bags(generator: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Returns positions in KEYS, offsets and weights of 8 bags, some of them empty."""
    lengths = generator.integers(0, 5, 8) * (generator.random(8) < 0.7)
    lengths[0] += 1
    count = int(lengths.sum())
    places = here(generator.integers(0, len(KEYS), count))
    offsets = here(np.cumsum(lengths) - lengths)
    return places, offsets, here(generator.uniform(0.5, 1.5, count))


@pytest.mark.parametrize(
    ("name", "mode", "dtype"),
    [
        pytest.param(
            name,
            mode,
            dtype,
            # Each optimizer with each mode, and half of them in each dtype.
            marks=pytest.mark.slow if (at_name + at_mode + at_dtype) % 2 else [],
        )
        for at_name, name in enumerate(NATIVE)
        for at_mode, mode in enumerate(("sum", "mean", "weighted"))
        for at_dtype, dtype in enumerate((torch.float64, torch.float32))
    ],
)
def test_rows_change_as_in_torch(
    name: str, mode: str, dtype: torch.dtype, generator: np.random.Generator, place: Any
) -> None:
    num_steps = STEPS.get(place.name, 50)
    check_parity(name, mode, dtype, generator, num_steps, **place.table)


def test_rows_change_as_in_torch_in_the_default_storage(generator: np.random.Generator) -> None:
    offered = {
        offer.descriptor.name
        for offer in make_plugin_manager().descriptors()
        if isinstance(offer.descriptor, StorageDescriptor)
    }
    if "hkv" not in offered:
        pytest.skip("sparring-hkv is not installed")
    for name in NATIVE:
        check_parity(name, "sum", torch.float64, generator, STEPS["cpu"], storage="hkv")


def check_parity(
    name: str,
    mode: str,
    dtype: torch.dtype,
    generator: np.random.Generator,
    num_steps: int,
    **table_place: Any,
) -> None:
    """Asserts that all rows equal torch's."""
    native, hyperparameters, is_sparse = NATIVE[name]
    how: dict[str, Any] = {"mode": "sum" if mode == "weighted" else mode}
    ours = EmbeddingBag(DIM, name="table", dtype=dtype, **table_place, **how)
    table = TableConfig("table", DIM, str(dtype).removeprefix("torch."))
    dense = torch.nn.EmbeddingBag(
        len(KEYS), DIM, _weight=here(initial_rows(KEYS, table)), sparse=is_sparse, **how
    )
    our_optimizer = Optimizer(ours, native, **hyperparameters)
    their_native: Callable[..., torch.optim.Optimizer] = (
        torch.optim.SparseAdam if is_sparse else native
    )
    their_optimizer = their_native(dense.parameters(), **hyperparameters)
    target = here(generator.normal(size=(8, DIM))).to(dtype)

    seen: set[int] = set()
    for _ in range(num_steps):
        our_optimizer.zero_grad()
        their_optimizer.zero_grad()
        for _ in range(int(generator.integers(1, 4))):
            places, offsets, weights = random_bags(generator)
            given = {}
            if mode == "weighted":
                given["per_sample_weights"] = weights.to(dtype)
            seen.update(places.tolist())
            ids = here(KEYS)[places]
            for module, index in ((ours, ids), (dense, places)):
                ((module(index, offsets, **given) - target) ** 2).mean().backward()
        our_optimizer.step()
        our_optimizer.zero_grad()
        their_optimizer.step()
        their_optimizer.zero_grad()

    rows = ours.eval()(here(KEYS).reshape(-1, 1))
    torch.testing.assert_close(rows, dense.weight.data, rtol=0, atol=TOLERANCE[dtype])
    assert ours.num_rows() == {"table": len(seen)}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_gradient_of_weights_equals_torch(
    dtype: torch.dtype, generator: np.random.Generator, place: Any
) -> None:
    ours = EmbeddingBag(DIM, name="table", dtype=dtype, mode="sum", **place.table)
    places, offsets, weights = random_bags(generator)
    ids = here(KEYS)[places]
    dense = torch.nn.EmbeddingBag(
        len(KEYS),
        DIM,
        mode="sum",
        _weight=ours.eval()(here(KEYS).reshape(-1, 1)).detach(),
    )
    scale = here(generator.normal(size=(8, DIM))).to(dtype)
    gradients = []
    for module, index in ((ours.train(), ids), (dense, places)):
        given = weights.to(dtype).requires_grad_()
        (module(index, offsets, per_sample_weights=given) * scale).sum().backward()
        gradients.append(given.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=TOLERANCE[dtype])
