"""Calls that other libraries accept work, or raise an error that names the fix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from sparring import Normal, StepContainer, TruncatedNormal
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch import (
    CombinedOptimizer,
    DistributedModelParallel,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    KeyedJaggedTensor,
    Optimizer,
    collate_jagged,
)
from sparring_torch.modules.init_functions import to_initializer


def test_paths_are_urls(tmp_path: Path) -> None:
    with StepContainer() as container:
        table = Embedding(2, name="items", container=container)
        Optimizer(table, "sgd", lr=0.1)
        saved = container.save(tmp_path / "step-1")
        assert saved.url == str(tmp_path / "step-1")
        assert container.load(tmp_path / "step-1").step == 0


# -- ids


def test_arrays_of_python_integers_are_ids() -> None:
    table = Embedding(2, name="items")
    ids = [5, 2**40, -(2**63)]
    given = np.array([*ids[:2], np.int64(ids[2])], dtype=object)
    assert torch.equal(table(given), table(torch.tensor(ids)))
    for wrong in ([1, 2.5], [1, None], [True, 1]):
        with pytest.raises(InvalidArgumentError) as caught:
            table(np.array(wrong, dtype=object))
        assert "strings" not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="found strings"):
        table(np.array(["a", 1], dtype=object))


@pytest.mark.parametrize(
    "ids", [[2**64 - 1], [[1], [2**63]], np.array([1, 2**64 - 1], dtype=object), [-(2**63) - 1]]
)
def test_integers_that_do_not_fit_are_named(ids: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"does not fit into int64.*view"):
        Embedding(2, name="items")(ids)


def test_bags_of_several_integer_dtypes_are_collated() -> None:
    examples = [{"a": torch.tensor([1], dtype=torch.uint32)}, {"a": [2**40]}, {"a": []}]
    ids, _ = collate_jagged(examples, ["a"])
    assert ids.values().tolist() == [1, 2**40]
    assert ids.lengths().tolist() == [1, 1, 0]
    wrong = [{"a": torch.tensor([1.5])}, {"a": [2]}]
    with pytest.raises(InvalidArgumentError, match="not a whole number"):
        collate_jagged(wrong, ["a"])


def test_offsets_and_weights_may_be_lists() -> None:
    bag = EmbeddingBag(2, mode="sum", name="bag")
    ids, offsets = torch.arange(3), torch.tensor([0, 1])
    weights = torch.tensor([1.0, 2.0, 3.0])
    expected = bag(ids, offsets, weights)
    assert torch.equal(bag(ids, [0, 1], [1.0, 2.0, 3.0]), expected)
    assert torch.equal(bag(ids, offsets.numpy(), weights), expected)


@pytest.mark.parametrize("wrong", [5, -1])
def test_an_inverse_index_without_a_bag_is_rejected(wrong: int) -> None:
    bags = EmbeddingBagCollection(
        [EmbeddingBagConfig(name="v", embedding_dim=2, feature_names=["v"])]
    )
    features = KeyedJaggedTensor(
        ["v"],
        torch.tensor([1]),
        lengths=torch.tensor([1]),
        stride_per_key_per_rank=[[1]],
        inverse_indices=(["v"], torch.tensor([[0, wrong]])),
    )
    with pytest.raises(InvalidArgumentError, match=f"found {wrong}, expected numbers of bags"):
        bags(features)


# -- functions of torch


def test_transforms_of_functions_are_rejected_with_the_alternative() -> None:
    model = nn.Sequential(Embedding(2, name="items"), nn.Linear(2, 1))
    weights = {name: each for name, each in model.named_parameters() if each.numel()}

    def loss(weights: dict[str, Tensor]) -> Tensor:
        output: Tensor = torch.func.functional_call(model, weights, (torch.arange(3),))
        return output.sum()

    with pytest.raises(UnsupportedError, match="before the transform"):
        torch.func.vmap(model)(torch.arange(6).view(2, 3))
    with pytest.raises(UnsupportedError, match="before the transform"):
        torch.func.grad(loss)(weights)
    assert loss(weights).dim() == 0  # a function without a transform


def test_truncations_that_change_nothing_are_normal_distributions() -> None:
    init = nn.init.trunc_normal_
    assert to_initializer(partial(init, std=0.02), "t") == Normal(0.0, 0.02)
    assert to_initializer(partial(init, std=0.02, a=-0.04, b=0.04), "t") == TruncatedNormal(0, 0.02)
    assert to_initializer(init, "t") == TruncatedNormal(0.0, 1.0)
    with pytest.raises(InvalidArgumentError, match="more than six, standard deviations"):
        to_initializer(partial(init, std=0.5), "t")


def test_a_schedule_of_momentum_needs_it_in_all_parts() -> None:
    model = nn.Sequential(Embedding(2, name="items"), nn.Linear(2, 1))
    dense = [each for each in model.parameters() if each.numel()]
    schedule = torch.optim.lr_scheduler.OneCycleLR
    mixed = CombinedOptimizer(
        [Optimizer(model, "adagrad", lr=0.1), torch.optim.Adam(dense, lr=0.1)]
    )
    with pytest.raises(ValueError, match="must support momentum or beta1"):
        schedule(mixed, max_lr=0.1, total_steps=9)
    schedule(mixed, max_lr=0.1, total_steps=9, cycle_momentum=False).step()
    alike = CombinedOptimizer(
        [Optimizer(model, torch.optim.Adam, lr=0.1), torch.optim.AdamW(dense, lr=0.1)]
    )
    schedule(alike, max_lr=0.1, total_steps=9).step()
    assert {group["betas"][0] != 0.9 for group in alike.param_groups} == {True}


# -- ranks without a launcher


@pytest.fixture
def process_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_ranks_of_a_process_group_need_no_variables() -> None:
    model = DistributedModelParallel(nn.Sequential(Embedding(2, name="items"), nn.Linear(2, 1)))
    assert model.container.collective.world_size == dist.get_world_size()
    model.container.rendezvous.set("key", b"value")
    assert model.container.rendezvous.get("key", 1.0) == b"value"
    assert model(torch.arange(3)).shape == (3, 1)
    model.close()
    assert dist.is_initialized()


@pytest.mark.parametrize(
    ("num_ranks", "factor", "found"),
    [(5000, 1.0, "ranks_per_node is 5000.*4096"), (2, 0.0, r"ids is 0\.0.*greater than 0")],
)
def test_limits_of_the_planner_are_reported_as_errors_of_arguments(
    num_ranks: int, factor: float, found: str
) -> None:
    pytest.importorskip("sparring_plan")
    from sparring_torch import torchrec

    bags = EmbeddingBagCollection(
        [EmbeddingBagConfig(name="v", embedding_dim=2, feature_names=["v"])]
    )
    planner = torchrec.EmbeddingShardingPlanner(
        torchrec.Topology(num_ranks, local_world_size=num_ranks),
        constraints={"v": torchrec.ParameterConstraints(pooling_factors=[factor])},
    )
    with pytest.raises(InvalidArgumentError, match=found):
        planner.plan(bags)


def test_a_state_of_several_optimizers_has_no_state_of_its_own(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = torch.nn.Sequential(Embedding(4, name="items"), torch.nn.Linear(4, 1))
    dense = torch.optim.Adam(model[1].parameters(), lr=0.1)
    optimizer = CombinedOptimizer([Optimizer(model, torch.optim.Adam, lr=0.1), dense])
    with pytest.raises(UnsupportedError, match="the optimizer of the ordinary parameters"):
        get_state_dict(model, optimizer)
    with pytest.raises(KeyError):
        _ = optimizer.state_dict()["other"]
    assert get_state_dict(model, dense)[1].keys() == {"state", "param_groups"}
    torch.save(optimizer.state_dict(), tmp_path / "state")
    assert torch.load(tmp_path / "state").keys() == {"0", "1"}
    optimizer.load_state_dict(torch.load(tmp_path / "state"))
