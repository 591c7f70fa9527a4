"""All tables of a collection on a device share one set of launches, with bit-identical results."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring import Frequency
from sparring.contracts import KernelSet
from sparring.errors import NonFiniteGradientError, PartialStepError
from sparring_torch.device.kernels import get_kernel_set
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, PoolingType
from sparring_torch.optim.optimizer import Optimizer

_emulated = pytest.importorskip(
    "sparring_hkv._emulated",
    reason="sparring-hkv was built without the emulator (-DSPARRING_HKV_EMULATED=ON)",
)


def _alike(count: int) -> list[EmbeddingBagConfig]:
    return [
        EmbeddingBagConfig(name=f"t{number}", embedding_dim=8, feature_names=[f"f{number}"])
        for number in range(count)
    ]


EVICTING = {
    "num_embeddings": 100,
    "storage": {"backend": "hkv", "device": "emulated", "policy": "lru"},
}
MIXED = [
    *_alike(3),
    EmbeddingBagConfig(name="mean", embedding_dim=8, pooling=PoolingType.MEAN),
    EmbeddingBagConfig(name="double", embedding_dim=3, data_type="float64"),
    EmbeddingBagConfig(name="half", embedding_dim=8, data_type="bfloat16", feature_names=["f1"]),
    EmbeddingBagConfig(name="twice", embedding_dim=5, feature_names=["f0", "f2"]),
    EmbeddingBagConfig(name="none", embedding_dim=8),
]


def _batch(features: list[str], num_ids: int, step: int) -> KeyedJaggedTensor:
    """Features with `num_ids` in bags of four, or none for "none"; half of the ids are equal."""
    generator = torch.Generator().manual_seed(step)
    lengths, ids = [], []
    for name in features:
        count = 0 if name == "none" else num_ids
        own = torch.randint(0, 50 + num_ids, (count,), generator=generator)
        ids.append(torch.where(torch.rand(count, generator=generator) < 0.5, 7, own))
        lengths.append(torch.full((num_ids // 4,), 4 if count else 0))
    joined = torch.cat(ids)
    weights = torch.linspace(-1, 1, len(joined))
    return KeyedJaggedTensor(features, joined, weights, torch.cat(lengths)).sync()


def _features(tables: list[EmbeddingBagConfig]) -> list[str]:
    return list(
        dict.fromkeys(name for each in tables for name in each.feature_names or [each.name])
    )


def _loss(values: Tensor) -> Tensor:
    return (values * torch.arange(values.shape[1])).cos().sum()


def _alone(patch: pytest.MonkeyPatch) -> None:
    """Makes kernels process tables one by one."""
    kernels = type(get_kernel_set("emulated"))
    for name in ("_pool_tables_impl", "sum_tables", "_update_tables_impl"):
        patch.setattr(kernels, name, getattr(KernelSet, name))


@pytest.mark.parametrize(
    ("given", "is_weighted"),
    [({}, False), ({}, True), (EVICTING, True), ({"admission": Frequency(2)}, False)],
    ids=["grows", "grows-weighted", "evicts-weighted", "admits"],
)
def test_tables_trained_together_equal_separate_tables(
    given: dict[str, Any], is_weighted: bool
) -> None:
    results = []
    for is_alone in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if is_alone:
                _alone(patch)
            tables = [replace(each, **given) for each in MIXED]
            where = {} if "storage" in given else {"device": "emulated"}
            module = EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, **where)
            optimizer = Optimizer(module, "rowwise_adagrad", lr=0.1)
            outputs = []
            for step in range(4):
                _emulated.set_schedule(seed=step)
                batch = _batch(_features(MIXED), 400, step)
                outputs.append(module(batch).values())
                _loss(outputs[-1]).backward()
                optimizer.step()
                optimizer.zero_grad()
            counters = module.agent.container.counters
            results.append((outputs, module.num_rows(), counters.rows_updated))
    _emulated.set_schedule(seed=0)
    (ours, *counts), (theirs, *expected) = results
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert counts == expected


def _work_of_a_step(num_tables: int) -> dict[str, int]:
    from sparring_hkv.devices import open_device

    tables = _alike(num_tables)
    module = EmbeddingBagCollection(tables=tables, device="emulated")
    optimizer = Optimizer(module, "rowwise_adagrad", lr=0.1)
    batch = _batch(_features(tables), 40, 1)
    handle: Any = open_device("emulated").handle
    for _ in range(3):  # keys and the state of new rows are known
        gc.collect()
        before = handle.work
        _loss(module(batch).values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        work = {name: count - before[name] for name, count in handle.work.items()}
    return work


@pytest.mark.slow
def test_26_tables_take_the_launches_and_waits_of_one() -> None:
    one, many = _work_of_a_step(1), _work_of_a_step(26)
    assert many["launches"] <= 2 * one["launches"]
    assert many["waits"] <= 2 * one["waits"]
    # docs/explanation/gpu-table.md
    assert (one["launches"], one["copies"], one["waits"]) == (14, 4, 2)
    assert (many["launches"], many["copies"], many["waits"]) == (16, 7, 2)


def _trained(**given: Any) -> tuple[EmbeddingBagCollection, Any, Any]:
    tables = [replace(each, **given) for each in _alike(3)]
    module = EmbeddingBagCollection(tables=tables, device="emulated")
    optimizer = Optimizer(module, "sgd", lr=0.1)
    batch = _batch(_features(_alike(3)), 40, 1)
    _loss(module(batch).values()).backward()
    optimizer.step()
    optimizer.zero_grad()
    return module, optimizer, batch


def _read(module: EmbeddingBagCollection) -> Tensor:
    with torch.no_grad():
        return module(_batch(_features(_alike(3)), 40, 1)).values()


def test_a_non_finite_gradient_changes_none_of_the_tables() -> None:
    module, optimizer, batch = _trained()
    before, steps = _read(module), module.agent.container.counters.steps
    scale = torch.ones(24)
    scale[8:16] = float("nan")
    (module(batch).values() * scale).sum().backward()
    with pytest.raises(NonFiniteGradientError, match="'t1' contain NaN or infinity"):
        optimizer.step()
    assert torch.equal(_read(module), before)
    assert module.agent.container.counters.steps == steps


class _Fails:
    def decide(self, *_: Any) -> Any:
        raise KeyError("not known")


def test_a_step_that_fails_at_one_table_names_the_changed_ones() -> None:
    module, optimizer, _ = _trained(admission=Frequency(1))
    container = module.agent.container
    before, updated = _read(module), container.counters.rows_updated
    batch = _batch(_features(_alike(3)), 40, 2)
    _loss(module(batch).values()).backward()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container.entry("t1"), "admission_filter", _Fails())
        with pytest.raises(PartialStepError, match="not known") as caught:
            optimizer.step()
    assert caught.value.written == ("t0",)
    assert caught.value.failed == ("t1",)
    assert caught.value.untouched == ("t2",)
    after = _read(module)
    assert not torch.equal(after[:, :8], before[:, :8])
    assert torch.equal(after[:, 8:], before[:, 8:])
    assert container.counters.rows_updated > updated
