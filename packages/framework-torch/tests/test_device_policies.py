"""Admission, bad gradients and eviction work for tables on a device as on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparring.engine.apply import gradients
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

from .device_bags import bags_of, read_all

CPU = torch.device("cpu")


def _places(place: Any, **given: Any) -> list[tuple[EmbeddingBag, torch.device]]:
    """The same module with its table on a device and on the CPU, and the device of its tensors."""
    return [
        (EmbeddingBag(16, name="items", mode="sum", device=place.name, **given), place.device),
        (EmbeddingBag(16, name="items", mode="sum", **given), CPU),
    ]


ADMISSIONS: list[dict[str, Any]] = [
    {"kind": "frequency", "k": 2},
    {"kind": "probability", "p": 0.4},
    {"kind": "bloom", "k": 2},
]


@pytest.mark.parametrize("admission", ADMISSIONS, ids=lambda each: each["kind"])
@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adam], ids=["fused", "native"])
def test_filters_admit_the_same_ids_as_on_the_cpu(
    admission: dict[str, Any], optimizer: Any, device_place: Any
) -> None:
    results = []
    for module, where in _places(device_place, admission=admission):
        chosen = Optimizer(module, optimizer, lr=0.1)
        for step in range(1, 6):
            (
                module(*(each.to(where) for each in bags_of(step))).sin()
                * torch.arange(1, 17, device=where)
            ).sum().backward()
            chosen.step()
            chosen.zero_grad()
        container = module.agent.container
        counted = container.num_not_admitted("items"), container.counters.rows_updated
        results.append((read_all(module, where), module.num_rows(), counted))
    assert device_place.agree(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]
    assert results[0][2][0] > 0


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adagrad], ids=["fused", "native"])
def test_invalid_gradients_are_skipped_by_row(optimizer: Any, device_place: Any) -> None:
    results = []
    for module, where in _places(device_place):
        chosen = Optimizer(module, optimizer, lr=0.1, non_finite_gradients="skip")
        for step in (1, 2):
            scale = torch.ones(6, 16, device=where)
            scale[step] = float("nan")
            ids = torch.arange(12, device=where).reshape(6, 2)
            (module(ids) * scale).sum().backward()
            chosen.step()
            chosen.zero_grad()
        counters = module.agent.container.counters
        results.append(
            (read_all(module, where), module.num_rows(), counters.rows_skipped_non_finite)
        )
    assert device_place.agree(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]
    assert results[0][2] == 4


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adagrad], ids=["fused", "native"])
@pytest.mark.parametrize("policy", ["lru", "lfu", "epoch_lru", "epoch_lfu"])
def test_bounded_tables_evict_by_their_policy_as_on_the_host_route(
    policy: str, optimizer: Any, device_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for goes_by_host in (False, True):
        if goes_by_host:
            monkeypatch.setattr(gradients, "_takes_arrays", lambda *_: False)
        storage = {"backend": "hkv", "device": device_place.name, "capacity": 150, "policy": policy}
        module = EmbeddingBag(16, name="items", mode="sum", storage=storage)
        chosen = Optimizer(module, optimizer, lr=0.1)
        container = module.agent.container
        for step in range(1, 7):
            if policy.startswith("epoch"):
                container.storage("items").set_option("epoch", step // 3)
            module(*(each.to(device_place.device) for each in bags_of(step))).sin().sum().backward()
            chosen.step()
            chosen.zero_grad()
        assert module.num_rows()["items"] <= 150
        counted = container.counters.rows_evicted
        chunks = list(container.storage("items").scan())
        keys, scores = (
            np.concatenate([getattr(each, name) for each in chunks]) for name in ("keys", "scores")
        )
        order = np.argsort(keys)
        rows = torch.from_numpy(np.concatenate([each.rows for each in chunks])[order])
        results.append((keys[order].tolist(), scores[order].tolist(), counted, rows))
    assert results[0][:3] == results[1][:3]
    assert device_place.agree(results[0][3], results[1][3])
    assert results[0][2] > 0
