"""Tables with 16-bit and int8 rows: outputs and gradients are float32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparring import Normal, Uniform
from sparring.contracts import Storage, TableConfig
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import DataType, EmbeddingBagConfig, EmbeddingConfig
from sparring_torch.optim.optimizer import Optimizer

HALVES = [torch.float16, torch.bfloat16]
NUM_IDS, DIM = 2_000, 7
IDS = torch.arange(NUM_IDS)


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        (DataType.FP16, "float16"),
        (DataType.BF16, "bfloat16"),
        (torch.float16, "float16"),
        (torch.bfloat16, "bfloat16"),
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("FP16", "float16"),
        ("BF16", "bfloat16"),
        (DataType.INT8, "int8"),
        (torch.int8, "int8"),
        ("int8", "int8"),
    ],
)
def test_narrow_tables_are_declared_in_many_ways_and_give_float32(said: Any, dtype: str) -> None:
    config = EmbeddingBagConfig(name="t", embedding_dim=3, data_type=said)
    collection = EmbeddingBagCollection([config])
    features = KeyedJaggedTensor(["t"], torch.tensor([5, 6, 5]), lengths=torch.tensor([2, 0, 1]))
    pooled = collection(features)["t"]
    assert pooled.dtype == torch.float32
    assert Optimizer(collection, "sgd", lr=0.1).container.tables["t"].dtype == dtype
    with torch.no_grad():
        torch.testing.assert_close(collection(features)["t"], pooled.detach())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_module_gives_float32_and_the_stored_numbers(dtype: torch.dtype) -> None:
    made: dict[str, Tensor] = {}
    embedding = Embedding(3, name="a", dtype=dtype)
    made["a"] = embedding(torch.tensor([1, 2]))
    made["b"] = EmbeddingBag(3, name="b", mode="mean", dtype=dtype)(torch.tensor([[1], [2]]))
    collection = EmbeddingCollection([EmbeddingConfig(name="c", embedding_dim=3, data_type=dtype)])
    features = KeyedJaggedTensor(["c"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))
    made["c"] = collection(features)["c"].values()
    for name, output in made.items():
        assert output.dtype == torch.float32, name
        assert torch.equal(output, output.to(dtype).float()), name
    made["a"].sum().backward()


def test_tables_of_16_and_32_bits_are_pooled_side_by_side() -> None:
    configs = [
        EmbeddingBagConfig(name="half", embedding_dim=2, data_type=torch.bfloat16),
        EmbeddingBagConfig(name="whole", embedding_dim=3),
    ]
    collection = EmbeddingBagCollection(configs)
    optimizer = Optimizer(collection, "adagrad", lr=0.1)
    features = KeyedJaggedTensor(
        ["half", "whole"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 1, 1, 0])
    )
    before = collection(features).values()
    assert before.shape == (2, 5)
    before.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    after = collection(features).values()
    assert torch.all((after < before) == (before != 0))
    assert torch.equal(after[:, :2], after[:, :2].bfloat16().float())


ROUTES: list[Any] = [
    pytest.param(torch.optim.SGD, {"lr": 1e-3}, 0, id="SGD"),
    pytest.param(torch.optim.Adagrad, {"lr": 1e-3}, DIM, id="Adagrad"),
    pytest.param(torch.optim.Adam, {"lr": 1e-4}, 2 * DIM, id="Adam"),
    pytest.param("sgd", {"lr": 1e-3}, 0, id="sgd"),
    pytest.param("adagrad", {"lr": 1e-3}, DIM, id="adagrad"),
    pytest.param("rowwise_adagrad", {"lr": 1e-3}, 1, id="rowwise_adagrad"),
    pytest.param("adam", {"lr": 1e-4}, 2 * DIM, id="adam"),
]


@pytest.mark.parametrize(
    ("native", "hyper", "state_width", "dtype", "storage"),
    [
        pytest.param(
            *route.values,
            dtype,
            storage,
            id=f"{route.id}-{dtype}-{storage}",
            # Successive routes have the dtypes in different storages. The shortest tests have each route
            # once.
            marks=pytest.mark.long
            if (number + at_dtype + at_storage) % 2 == 0
            else pytest.mark.slow
            if at_dtype != number // 2 % 2
            else [],
        )
        for number, route in enumerate(ROUTES)
        for at_dtype, dtype in enumerate(HALVES)
        for at_storage, storage in enumerate(("memory", "hkv"))
    ],
)
def test_16_bit_rows_follow_float32_ones_without_bias_and_their_state_is_the_same(
    native: Any, hyper: dict[str, float], state_width: int, dtype: torch.dtype, storage: str
) -> None:
    if storage == "hkv":
        pytest.importorskip("sparring_hkv", reason="sparring-hkv is not installed")
    num_steps = 30
    factors = torch.Generator().manual_seed(0)
    rows: dict[torch.dtype, Any] = {}
    modules = {
        each: Embedding(DIM, name="t", dtype=each, storage=storage)
        for each in (dtype, torch.float32)
    }
    # Both start with numbers that 16 bits can represent.
    start = modules[dtype](IDS).detach().clone()
    optimizers = {each: Optimizer(module, native, **hyper) for each, module in modules.items()}
    opened = optimizers[torch.float32].container.storage("t")
    state = np.zeros((NUM_IDS, state_width), np.float32)
    opened.upsert(IDS.numpy(), np.concatenate([start.numpy(), state], axis=1))
    for _ in range(num_steps):
        # Gradients that do not depend on embeddings are equal for both.
        factor = torch.randn(NUM_IDS, DIM, generator=factors) + 0.2
        for each, module in modules.items():
            (module(IDS) * factor).sum().backward()
            optimizers[each].step()
            optimizers[each].zero_grad()
    for each, optimizer in optimizers.items():
        kept: Storage = optimizer.container.storage("t")
        found = kept.find(IDS.numpy()).rows
        embeddings = kept.table.embeddings(found)
        rows[each] = (
            embeddings if each is torch.float32 else kernels.decode(embeddings),
            np.ascontiguousarray(kept.table.state(found)).tobytes(),
        )
    assert len(rows[dtype][1]) == NUM_IDS * state_width * 4
    assert rows[dtype][1] == rows[torch.float32][1]
    errors = rows[dtype][0].astype(np.float64) - rows[torch.float32][0]
    # Embeddings stay below 1/8: the spacing of values is at most this, and a step's error is less.
    place = 2.0**-4 * 2.0 ** -(10 if dtype is torch.float16 else 7)
    assert np.abs(rows[torch.float32][0]).max() < 0.125
    deviation = place / 2 * np.sqrt(num_steps)
    assert np.abs(errors).max() < 6 * deviation
    assert np.abs(errors).max() > 0
    assert abs(errors.mean()) < 4 * deviation / np.sqrt(errors.size)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_flushing_of_subnormal_numbers_changes_no_conversion(dtype: str) -> None:
    table = TableConfig("t", 8, dtype)
    generator = np.random.default_rng(0)
    scale = 10.0 ** generator.integers(-42, -1, (40, 8))
    values = (generator.normal(size=(40, 8)) * scale).astype(np.float32)
    keys = np.arange(40)

    def converted() -> bytes:
        nearest, random = (np.zeros((40, 8), table.numpy_dtype) for _ in range(2))
        kernels.encode(values, nearest)
        kernels.encode(values, random, kernels.Rounding(keys, 1, 1))
        starts = [
            kernels.initial_rows(keys, replace(table, initializer=each))
            for each in (Uniform(-1e-38, 1e-38), Normal(0.0, 1e-7))
        ]
        return b"".join(
            part.tobytes() for part in (nearest, random, kernels.decode(random), *starts)
        )

    before = converted()
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormal numbers")
    try:
        assert converted() == before
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("dtype", [*HALVES, torch.int8], ids=str)
def test_a_model_of_16_bit_tables_learns(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    embedding = EmbeddingBag(8, mode="mean", dtype=dtype)
    head = nn.Linear(8, 1)
    sparse = Optimizer(embedding, torch.optim.Adagrad, lr=0.1)
    dense = torch.optim.Adam(head.parameters(), lr=0.01)
    ids = torch.randint(200, (256, 4))
    target = (ids % 2).float().mean(dim=1, keepdim=True)
    losses = []
    for _ in range(60):
        loss = nn.functional.mse_loss(head(embedding(ids)), target)
        losses.append(loss.item())
        dense.zero_grad()
        loss.backward()
        sparse.step()
        sparse.zero_grad()
        dense.step()
    assert losses[-1] < 0.1 * losses[0]


def test_other_data_types_are_rejected_with_the_supported_ones() -> None:
    for wrong in (torch.uint8, torch.float8_e4m3fn, "INT4", DataType):
        with pytest.raises(
            InvalidArgumentError, match="one of float32, float64, float16, bfloat16, int8, found"
        ):
            EmbeddingBagCollection(
                [EmbeddingBagConfig(name="t", embedding_dim=2, data_type=wrong)]  # type: ignore[arg-type]
            )
