"""Complete fused steps, from ids to rows, compared to the papers' formulas for hand-summed gradients.

A batch has empty bags, ids that repeat within and across bags, weights, a table with two features and
one without a gradient in some steps; a step has up to three micro-batches. Tables differ in
hyper-parameters, and a scheduler changes their rates. Gradients are clipped after they are summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from sparring.runtime import pool as execution
from sparring_testing.references import update_references as references
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, PoolingType
from sparring_torch.optim.optimizer import Optimizer

Array = npt.NDArray[np.float64]

FEATURES = {"u": ("user", 0, 4), "seen": ("item", 4, 7), "bought": ("item", 7, 10)}
"""Feature → its table, and its columns of the output."""
IDS = np.arange(-30, 30)
NUM_STEPS, NUM_BAGS = 60, 6

HYPER: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05, "weight_decay": 0.02},
    "momentum": {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.02},
    "adagrad": {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.02},
    "rowwise_adagrad": {"lr": 0.1, "weight_decay": 0.02, "initial_accumulator_value": 0.1},
    "adam": {"lr": 0.02, "weight_decay": 0.02},
    "sparse_adam": {"lr": 0.02, "eps": 0.01},
    "adamw": {"lr": 0.02, "weight_decay": 0.1},
    "partial_rowwise_adam": {"lr": 0.02, "weight_decay": 0.1},
    "lamb": {"lr": 0.02, "weight_decay": 0.1},
    "rmsprop": {"lr": 0.02, "weight_decay": 0.02},
    "lion": {"lr": 0.003, "weight_decay": 0.1},
    "ftrl": {"lr": 0.1, "l1": 0.1, "l2": 0.1},
    "group_ftrl": {"lr": 0.1, "l1": 0.05, "l21": 0.1},
}
# User rows are clipped in both ways; item rows are not, and have another rate.
USER = {"clip_value": 1.2, "clip_norm": 1.7}


def collection(storage: str = "hkv") -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name="user", embedding_dim=4, feature_names=["u"], data_type=torch.float64
        ),
        EmbeddingBagConfig(
            name="item",
            embedding_dim=3,
            feature_names=["seen", "bought"],
            pooling=PoolingType.MEAN,
            data_type=torch.float64,
        ),
    ]
    return EmbeddingBagCollection(tables, is_weighted=True, storage=storage)


def batch(
    random: np.random.Generator, num_bags: int, most: int, *, has_users: bool = True
) -> KeyedJaggedTensor:
    """Features in another order than tables; a bag has at most `most` ids, and may be empty."""
    lengths = random.integers(0, most + 1, 3 * num_bags)
    if not has_users:
        lengths[num_bags : 2 * num_bags] = 0
    count = int(lengths.sum())
    return KeyedJaggedTensor(
        keys=["bought", "u", "seen"],
        values=torch.from_numpy(random.choice(IDS, count)),
        lengths=torch.from_numpy(lengths),
        weights=torch.from_numpy(random.standard_normal(count)),
    )


def add_gradients(sums: dict[str, dict[int, Array]], kjt: KeyedJaggedTensor, factor: Array) -> None:
    """Adds the gradients of a batch by table and id: the weight, divided by the bag's size for mean."""
    for name, (table, begin, end) in FEATURES.items():
        feature = kjt[name]
        ids, weights = feature.values().tolist(), feature.weights().tolist()
        at = 0
        for bag, length in enumerate(feature.lengths().tolist()):
            share = length if table == "item" else 1
            for place in range(at, at + length):
                gradient = factor[bag, begin:end] * weights[place] / share
                known = sums[table].get(ids[place])
                sums[table][ids[place]] = gradient if known is None else known + gradient
            at += length


def rows_of(made: EmbeddingBagCollection) -> dict[str, Array]:
    """Returns the current embeddings of all ids, by table."""
    count = len(IDS)
    ids = torch.from_numpy(np.tile(IDS, 2))
    kjt = KeyedJaggedTensor(
        keys=["u", "seen", "bought"],
        values=ids,
        lengths=torch.tensor([1] * (2 * count) + [0] * count),
        weights=torch.ones(len(ids), dtype=torch.float64),
    )
    with torch.no_grad():
        out = made(kjt)
    return {"user": out["u"].numpy().copy(), "item": out["seen"].numpy().copy()}


STORAGES = [(name, "hkv") for name in HYPER] + [("adam", "memory"), ("rowwise_adagrad", "memory")]


@pytest.mark.parametrize(("name", "storage"), STORAGES)
def test_whole_steps_of_a_method_equal_the_rows_of_its_paper(name: str, storage: str) -> None:
    made = collection(storage)
    own = {**HYPER[name], **USER}
    by_table = {"user": own, "item": {**own, "lr": own["lr"] / 2, "clip_value": 0, "clip_norm": 0}}
    optimizer = Optimizer(made, name, tables={"item": by_table["item"]}, **own)
    hyper = {
        group["table"]: {each: value for each, value in group.items() if each != "params"}
        for group in optimizer.param_groups
    }
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, gamma=0.9)
    random = np.random.default_rng(11)
    expected = rows_of(made)
    states: dict[str, dict[int, dict[str, Any]]] = {"user": {}, "item": {}}
    steps = {"user": 0, "item": 0}
    num_clipped = 0
    for step in range(NUM_STEPS):
        sums: dict[str, dict[int, Array]] = {"user": {}, "item": {}}
        for _ in range(1 + step % 3):
            kjt = batch(random, NUM_BAGS, 3, has_users=step % 4 != 0)
            factor = random.standard_normal((NUM_BAGS, 10))
            (made(kjt).values() * torch.from_numpy(factor)).sum().backward()
            add_gradients(sums, kjt, factor)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        for table, gradients in sums.items():
            steps[table] += bool(gradients)
            given = {**hyper[table], "lr": by_table[table]["lr"] * 0.9 ** (step // 20)}
            for key, gradient in gradients.items():
                place = key - int(IDS[0])
                clipped = references.clip_gradient(gradient, given)
                num_clipped += bool((clipped != gradient).any())
                state = states[table].setdefault(key, {})
                expected[table][place] = references.REFERENCES[name](
                    expected[table][place], state, clipped, steps[table], given
                )
    assert num_clipped > 100
    assert optimizer.state_dict()["state"] == {
        "user": {"step": NUM_STEPS - NUM_STEPS // 4},
        "item": {"step": NUM_STEPS},
    }
    for table, found in rows_of(made).items():
        np.testing.assert_allclose(found, expected[table], rtol=1e-9, atol=1e-11, err_msg=table)


@pytest.mark.parametrize("num_micro_batches", [1, 2, 3])
def test_a_batch_without_ids_for_a_table_is_not_a_step_of_it(num_micro_batches: int) -> None:
    made = collection()
    optimizer = Optimizer(made, "adam")
    random = np.random.default_rng(0)
    for _ in range(num_micro_batches):
        made(batch(random, NUM_BAGS, 3, has_users=False)).values().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert optimizer.state_dict()["state"] == {"user": {"step": 0}, "item": {"step": 1}}


def test_batches_divided_among_threads_are_grouped_equally() -> None:
    execution.configure_pool(2)
    made = collection()
    optimizer = Optimizer(made, "sgd", lr=1.0)
    expected = rows_of(made)
    random = np.random.default_rng(3)
    sums: dict[str, dict[int, Array]] = {"user": {}, "item": {}}
    for _ in range(2):
        kjt = batch(random, 4000, 6)
        assert len(kjt.values()) > 20_000
        factor = random.standard_normal((4000, 10))
        (made(kjt).values() * torch.from_numpy(factor)).sum().backward()
        add_gradients(sums, kjt, factor)
    optimizer.step()
    optimizer.zero_grad()
    for table, gradients in sums.items():
        for key, gradient in gradients.items():
            expected[table][key - int(IDS[0])] -= gradient
    for table, found in rows_of(made).items():
        np.testing.assert_allclose(found, expected[table], rtol=1e-9, atol=1e-9, err_msg=table)
