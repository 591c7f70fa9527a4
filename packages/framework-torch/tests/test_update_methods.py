"""Update methods by name: compared to torch's optimizers, and as a part of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparring import StepContainer
from sparring.errors import (
    CapacityError,
    InvalidArgumentError,
    NonFiniteGradientError,
    PluginError,
    UnsupportedError,
)
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from sparring_torch.optim.optimizer import Optimizer

STORAGES = ["hkv", "memory"]
DIM, NUM_IDS = 6, 30

Native = Callable[[list[nn.Parameter]], torch.optim.Optimizer]

AGAINST_TORCH: list[Any] = [
    pytest.param("sgd", {"lr": 0.1}, lambda p: torch.optim.SGD(p, 0.1), id="sgd"),
    pytest.param(
        "adagrad",
        {"lr": 0.1, "lr_decay": 0.01, "initial_accumulator_value": 0.1},
        lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.01, initial_accumulator_value=0.1),
        id="adagrad",
    ),
    pytest.param(
        "sparse_adam",
        {"lr": 0.01, "eps": 0.1},
        lambda p: torch.optim.SparseAdam(p, 0.01, eps=0.1),
        id="sparse_adam",
    ),
]
ALL_ROWS: list[Any] = [
    pytest.param(
        "momentum",
        {"lr": 0.05, "nesterov": True, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True, weight_decay=0.01),
        id="momentum",
    ),
    pytest.param(
        "adam",
        {"lr": 0.01, "weight_decay": 0.01},
        lambda p: torch.optim.Adam(p, 0.01, weight_decay=0.01),
        id="adam",
    ),
    pytest.param(
        "adamw",
        {"lr": 0.01, "weight_decay": 0.1},
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
        id="adamw",
    ),
    pytest.param(
        "rmsprop",
        {"lr": 0.01, "alpha": 0.9},
        lambda p: torch.optim.RMSprop(p, 0.01, alpha=0.9),
        id="rmsprop",
    ),
]


def bag(storage: str = "hkv", **options: Any) -> EmbeddingBag:
    return EmbeddingBag(DIM, mode="sum", name="t", dtype=torch.float64, storage=storage, **options)


def same_start(embedding: EmbeddingBag, *, sparse: bool) -> nn.EmbeddingBag:
    dense = nn.EmbeddingBag(NUM_IDS, DIM, mode="sum", sparse=sparse, dtype=torch.float64)
    with torch.no_grad():
        dense.weight.copy_(embedding(torch.arange(NUM_IDS).view(-1, 1)))
    return dense


def compare_over_steps(
    embedding: EmbeddingBag,
    ours: Optimizer,
    dense: nn.EmbeddingBag,
    theirs: torch.optim.Optimizer,
    *,
    touches_all: bool,
) -> None:
    random = torch.Generator().manual_seed(4)
    for step in range(60):
        for _ in range(1 + step % 2):  # every other step has two micro-batches
            ids = torch.randint(NUM_IDS, (40,), generator=random)
            if touches_all:
                ids = torch.cat([ids, torch.arange(NUM_IDS)])
            offsets = torch.tensor([0, 3, 3, 11])
            factor = torch.randn(4, DIM, generator=random, dtype=torch.float64)
            for module in (embedding, dense):
                (module(ids, offsets) * factor).sum().backward()
        ours.step()
        ours.zero_grad()
        theirs.step()
        theirs.zero_grad()
    with torch.no_grad():
        found = embedding(torch.arange(NUM_IDS).view(-1, 1))
    torch.testing.assert_close(found, dense.weight.detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "storage", [STORAGES[0], pytest.param(STORAGES[1], marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("name", "hyper", "native"), AGAINST_TORCH)
def test_sparse_rows_change_as_in_torch(
    name: str, hyper: dict[str, Any], native: Native, storage: str
) -> None:
    embedding = bag(storage)
    dense = same_start(embedding, sparse=True)
    ours = Optimizer(embedding, name, **hyper)
    compare_over_steps(embedding, ours, dense, native(list(dense.parameters())), touches_all=False)


@pytest.mark.parametrize(("name", "hyper", "native"), ALL_ROWS)
def test_rows_that_are_all_used_change_as_in_torch(
    name: str, hyper: dict[str, Any], native: Native
) -> None:
    embedding = bag()
    dense = same_start(embedding, sparse=False)
    ours = Optimizer(embedding, name, **hyper)
    compare_over_steps(embedding, ours, dense, native(list(dense.parameters())), touches_all=True)


# -- collections ------------------------------------------------------------------


def collection(storage: str, **options: Any) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(name="user", embedding_dim=4, feature_names=["u"]),
        EmbeddingBagConfig(
            name="item", embedding_dim=3, feature_names=["seen", "bought"], pooling=PoolingType.MEAN
        ),
    ]
    return EmbeddingBagCollection(tables, storage=storage, **options)


def batch(random: np.random.Generator, size: int = 50) -> KeyedJaggedTensor:
    lengths = torch.from_numpy(random.integers(0, 4, 3 * size))
    ids = torch.from_numpy(random.integers(-40, 40, int(lengths.sum())))
    # The batch and the tables have different orders of features.
    return KeyedJaggedTensor(keys=["bought", "u", "seen"], values=ids, lengths=lengths)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    ("name", "native"),
    [("sgd", torch.optim.SGD), ("adagrad", torch.optim.Adagrad), ("adam", torch.optim.Adam)],
)
def test_the_fused_route_and_shadows_give_the_same_rows(
    name: str, native: type[torch.optim.Optimizer], storage: str
) -> None:
    fused, shadowed = collection(storage), collection("memory")
    one, other = Optimizer(fused, name, lr=0.1), Optimizer(shadowed, native, lr=0.1)
    random = np.random.default_rng(8)
    for _ in range(30):
        kjt = batch(random)
        factor = torch.from_numpy(random.standard_normal((50, 10)).astype(np.float32))
        for module, optimizer in ((fused, one), (shadowed, other)):
            (module(kjt).values() * factor).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert fused.num_rows() == shadowed.num_rows()
    with torch.no_grad():
        kjt = batch(random)
        torch.testing.assert_close(
            fused(kjt).values(), shadowed(kjt).values(), rtol=1e-4, atol=1e-6
        )


def test_sequences_train_too() -> None:
    made = EmbeddingCollection(
        [EmbeddingConfig(name="t", embedding_dim=3, feature_names=["a", "b"])]
    )
    optimizer = Optimizer(made, "sgd", lr=1.0)
    kjt = KeyedJaggedTensor(
        keys=["a", "b"], values=torch.tensor([5, 5, 9, 5]), lengths=torch.tensor([2, 0, 1, 1])
    )
    before = {name: part.values().detach().clone() for name, part in made(kjt).items()}
    sum(part.values().sum() for part in made(kjt).values()).backward()
    optimizer.step()
    optimizer.zero_grad()
    after = made(kjt)
    torch.testing.assert_close(after["a"].values(), before["a"] - 3)
    torch.testing.assert_close(after["b"].values(), before["b"] - torch.tensor([[1.0], [3.0]]))


@pytest.mark.parametrize(
    ("method", "update"),
    [("sgd", "auto"), (torch.optim.SGD, "auto"), (torch.optim.SGD, "shadow")],
)
def test_hyper_parameters_of_a_table_may_change_between_steps(method: Any, update: str) -> None:
    made = collection("hkv")
    optimizer = Optimizer(made, method, lr=1.0, tables={"item": {"lr": 0.25}}, update=update)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    assert [(group["table"], group["lr"]) for group in optimizer.param_groups] == [
        ("user", 1.0),
        ("item", 0.25),
    ]
    kjt = KeyedJaggedTensor(
        keys=["u", "seen", "bought"],
        values=torch.tensor([1, 2]),
        lengths=torch.tensor([1, 1, 0]),
    )
    moves = []
    for _ in range(2):
        before = made(kjt)
        before.values().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        moved = before.values() - made(kjt).values()
        moves.append((round(float(moved[0, 0]), 4), round(float(moved[0, 4]), 4)))
    assert moves == [(1.0, 0.25), (0.5, 0.125)]
    if method == "sgd":  # a class of torch checks nothing later
        optimizer.param_groups[0]["lr"] = -1.0
        made(kjt).values().sum().backward()
        with pytest.raises(InvalidArgumentError, match=r"'lr': .*found -1.0"):
            optimizer.step()


def test_new_rows_start_from_the_current_initial_state_of_the_group() -> None:
    changed, loaded, made_so = (
        EmbeddingBag(2, mode="sum", name="t", initializer="zeros") for _ in range(3)
    )
    last = Optimizer(made_so, "adagrad", lr=1.0, initial_accumulator_value=3.0)
    first, second = (Optimizer(each, "adagrad", lr=1.0) for each in (changed, loaded))
    first.param_groups[0]["initial_accumulator_value"] = 3.0
    second.load_state_dict(last.state_dict())
    ids = torch.tensor([[1]])
    for module, optimizer in ((changed, first), (loaded, second), (made_so, last)):
        module(ids).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert module(ids).tolist() == [[-0.5, -0.5]]  # 1 / √(3 + 1)


def test_groups_of_parameters_cannot_be_added() -> None:
    made = bag()
    for native in ("sgd", torch.optim.SGD):
        optimizer = Optimizer(made, native, lr=1.0)
        with pytest.raises(
            UnsupportedError, match="updates the tables of its modules, t; give ordinary"
        ):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
        made(torch.tensor([[1]])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_steps_are_in_the_state_dict() -> None:
    made = collection("hkv")
    optimizer = Optimizer(made, "adam", lr=0.1)
    made(batch(np.random.default_rng(0))).values().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    saved = optimizer.state_dict()
    assert saved["native"] == "adam"
    assert saved["state"] == {"user": {"step": 1}, "item": {"step": 1}}
    saved["param_groups"][1]["lr"] = 0.7
    other = Optimizer(collection("hkv"), "adam", lr=0.1)
    other.load_state_dict(saved)
    assert other.state_dict() == saved
    with pytest.raises(InvalidArgumentError, match="of optimizer 'adam'"):
        Optimizer(collection("hkv"), "adamw").load_state_dict(saved)


# -- gradients -----------------------------------------------------------------


def test_zero_grad_drops_and_no_grad_registers_nothing() -> None:
    made = collection("hkv")
    optimizer = Optimizer(made, "sgd", lr=1.0)
    kjt = batch(np.random.default_rng(1))
    made(kjt).values().sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert made.num_rows() == {"user": 0, "item": 0}
    with torch.no_grad():
        made.train()
        assert not made(kjt).values().requires_grad
    assert optimizer.container.resources.num_batch_inputs == 0


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_gradients_change_nothing(value: float) -> None:
    made = bag()
    optimizer = Optimizer(made, "adagrad", lr=1.0)
    ids = torch.tensor([[1], [2]])
    made(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    before = made(ids).detach().clone()
    out = made(torch.tensor([[2], [3]]))
    (out * torch.tensor([[1.0], [value]], dtype=torch.float64)).sum().backward()
    with pytest.raises(NonFiniteGradientError, match=r"1 of 2 keys, .* key 3"):
        optimizer.step()
    assert made.num_rows() == {"t": 2}
    torch.testing.assert_close(made(ids), before, rtol=0, atol=0)
    assert optimizer.state_dict()["state"] == {"t": {"step": 1}}


def test_rows_with_non_finite_gradients_are_skipped_on_request() -> None:
    made = bag()
    optimizer = Optimizer(made, "sgd", lr=1.0, non_finite_gradients="skip")
    ids = torch.tensor([[2], [3]])
    before = made(ids).detach().clone()
    nan = torch.tensor([[1.0], [float("nan")]], dtype=torch.float64)
    (made(ids) * nan).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert made.num_rows() == {"t": 1}
    torch.testing.assert_close(made(ids)[0], before[0] - 1)
    torch.testing.assert_close(made(ids)[1], before[1], rtol=0, atol=0)
    assert optimizer.container.counters.rows_skipped_non_finite == 1


def test_overflowing_sums_of_finite_gradients_are_found() -> None:
    made = EmbeddingBag(4, mode="sum", name="t")
    optimizer = Optimizer(made, "sgd", lr=1.0)
    # The last key has one gradient; the fourth of 5 has an infinite sum.
    (made(torch.tensor([[5], [5], [5], [5], [6]])) * 1e38).sum().backward()
    with pytest.raises(NonFiniteGradientError, match="example key 5"):
        optimizer.step()
    assert made.num_rows() == {"t": 0}


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_weights_that_make_a_finite_gradient_overflow_are_found(policy: str) -> None:
    made = EmbeddingBag(4, mode="sum", name="t")
    optimizer = Optimizer(made, "sgd", lr=1.0, non_finite_gradients=policy)
    ids, weights = torch.tensor([[5], [6]]), torch.tensor([[-1e30], [1.0]])
    (made(ids, per_sample_weights=weights) * 1e30).sum().backward()
    if policy == "raise":
        with pytest.raises(NonFiniteGradientError, match="example key 5"):
            optimizer.step()
    else:
        optimizer.step()
        optimizer.zero_grad()
    assert made.num_rows() == {"t": int(policy == "skip")}


def test_a_gradient_that_is_changed_before_the_step_is_rejected() -> None:
    made = bag()
    optimizer = Optimizer(made, "sgd", lr=1.0)
    out = made(torch.tensor([[1]]))
    kept: list[torch.Tensor] = []
    out.register_hook(kept.append)
    (out * 2).sum().backward()
    kept[0].mul_(5)
    with pytest.raises(InvalidArgumentError, match="changed in place after backward"):
        optimizer.step()
    assert made.num_rows() == {"t": 0}


def test_a_full_storage_rejects_the_step_of_all_tables() -> None:
    container = StepContainer()
    one = bag(container=container)
    full = EmbeddingBag(
        3, mode="sum", name="full", storage={"backend": "hkv", "capacity": 2}, container=container
    )
    optimizer = Optimizer([one, full], "sgd", lr=1.0)
    (one(torch.tensor([[1]])).sum() + full(torch.tensor([[1, 2, 3]])).sum()).backward()
    with pytest.raises(CapacityError, match="a capacity of 2; this step would add 3"):
        optimizer.step()
    assert one.num_rows() == {"t": 0}
    assert full.num_rows() == {"full": 0}


# -- rejections and admission -----------------------------------------------------


def test_invalid_methods_and_tables_are_named() -> None:
    with pytest.raises(PluginError, match="did you mean 'rowwise_adagrad'"):
        Optimizer(bag(), "rowwise_adagrd")
    with pytest.raises(InvalidArgumentError, match=r"no table 'usr'.*'user'"):
        Optimizer(collection("hkv"), "sgd", tables={"usr": {"lr": 1.0}})
    with pytest.raises(InvalidArgumentError, match=r"no table 'usr'.*'user'"):
        Optimizer(collection("hkv"), torch.optim.SGD, tables={"usr": {"lr": 1.0}}, lr=1.0)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("optimizer_of", ["sgd", torch.optim.SGD])
def test_ids_that_are_not_admitted_read_their_initial_value(
    optimizer_of: Any, storage: str
) -> None:
    made = bag(storage, admission={"kind": "frequency", "k": 3})
    optimizer = Optimizer(made, optimizer_of, lr=1.0)
    ids = torch.tensor([[1], [2]])
    before = made(ids).detach().clone()
    counters = optimizer.container.counters
    for step in range(1, 5):
        if step == 2:  # a step that raises is not counted
            (made(ids) * float("nan")).sum().backward()
            with pytest.raises(NonFiniteGradientError):
                optimizer.step()
        # The second id occurs from step 2 on only.
        made(ids if step > 1 else ids[:1]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        expected = {1: (0, 1), 2: (0, 3), 3: (1, 4), 4: (2, 4)}[step]
        assert (made.num_rows()["t"], counters.gradients_not_admitted) == expected
    torch.testing.assert_close(made(ids), before - torch.tensor([[2.0], [1.0]]))
