"""Effects of parameters with names of TorchRec and torch that take a few statements to observe.

`foreign_parameters` checks the others, and `test_foreign_parameters` that none is missing.
"""

from __future__ import annotations

import logging
import os
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import sparring_torch as st
from sparring.errors import SparringError
from sparring_torch import torchrec as tr
from sparring_torch.torchrec import planner as planners

from .foreign_calls import CPU, META, Model, bags, dense_optimizer, distributed, one, shown

COVERED: set[str] = set()
"""Parameters that the tests of this file cover."""


def covers(prefix: str, **cases: Any) -> pytest.MarkDecorator:
    """Parametrizes a test with parameters and their values, the default first."""
    COVERED.update(f"{prefix}.{name}" for name in cases)
    return pytest.mark.parametrize(("name", "values"), cases.items(), ids=list(cases))


def assert_differ(results: list[Any]) -> None:
    found = [shown(each) for each in results]
    assert all(each not in found[:place] for place, each in enumerate(found)), found


OPTIMIZERS = {
    "CombinedOptimizer": "combined",
    "KeyedOptimizerWrapper": "keyed",
    "GradientClippingOptimizer": "clipping",
    "RowWiseAdagrad": "rowwise",
}
COVERED.update(f"{kind}.step.closure" for kind in (*OPTIMIZERS, "KeyedOptimizer", "Optimizer"))
COVERED.update(f"{kind}.zero_grad.set_to_none" for kind in OPTIMIZERS if "Row" not in kind)


@pytest.mark.parametrize("kind", [*OPTIMIZERS.values(), "rows"])
def test_step_calls_the_closure_and_returns_its_loss(kind: str) -> None:
    for closure, loss in ((None, None), (lambda: 3.0, 3.0)):
        if kind == "rows":
            optimizer: Any = st.Optimizer(bags(), torch.optim.SGD, lr=0.1)
        else:
            optimizer, _ = dense_optimizer(kind)
        assert optimizer.step(closure) == loss


def test_the_abstract_optimizer_takes_no_step() -> None:
    for closure in (None, lambda: 3.0):
        with pytest.raises(NotImplementedError):
            tr.KeyedOptimizer({}, {}, []).step(closure)


@pytest.mark.parametrize("kind", ["combined", "keyed", "clipping"])
def test_gradients_are_dropped_or_zeroed(kind: str) -> None:
    for set_to_none in (True, False):
        optimizer, weight = dense_optimizer(kind)
        optimizer.zero_grad(set_to_none)
        assert (weight.grad is None) == set_to_none
        assert set_to_none or not weight.grad.any()  # type: ignore[union-attr]


@covers("Optimizer.zero_grad", set_to_none=(True, False))
def test_a_row_without_a_gradient_does_not_move_in_either_case(name: str, values: Any) -> None:
    for value in values:
        module = st.Embedding(2, name="cleared")
        optimizer = st.Optimizer(module, torch.optim.SGD, lr=0.1)
        before = module.read_embeddings([1])
        module(torch.tensor([1])).sum().backward()
        optimizer.zero_grad(**{name: value})
        optimizer.step()
        assert torch.equal(module.read_embeddings([1]), before)


@covers(
    "GradientClippingOptimizer",
    clipping=tuple(tr.GradientClipping),
    max_gradient=(0.1, 1.0),
    norm_type=(2.0, 1.0),
)
def test_clipped_gradients(name: str, values: Any) -> None:
    results = []
    for value in values:
        weight = nn.Parameter(torch.ones(2, 2))
        weight.grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        limit = {"max_gradient": 0.7} if name == "clipping" else {}
        settings = {"clipping": tr.GradientClipping.NORM, **limit, name: value}
        tr.GradientClippingOptimizer(torch.optim.SGD([weight], lr=0.1), **settings).step()
        results.append(weight.detach())
    assert_differ(results)


@covers(
    "RowWiseAdagrad",
    lr=(0.01, 0.5),
    lr_decay=(0.0, 0.5),
    weight_decay=(0.0, 0.5),
    initial_accumulator_value=(0.0, 0.5),
    eps=(1e-10, 0.5),
    maximize=(False, True),
)
def test_row_wise_adagrad(name: str, values: Any) -> None:
    results = []
    for value in values:
        weight = nn.Parameter(torch.tensor([[1.0, 2.0]]))
        optimizer = tr.RowWiseAdagrad([weight], **{name: value})
        for _ in range(2):
            weight.grad = torch.tensor([[0.5, 0.1]])
            optimizer.step()
        results.append(weight.detach())
    assert_differ(results)


@covers(
    "RandomRecDataset",
    hash_size=(None, 7),
    hash_sizes=(None, [7, 3]),
    ids_per_feature=(None, 5),
    ids_per_features=(None, [5, 1]),
    num_dense=(50, 3),
    manual_seed=(1, 2),
    min_ids_per_feature=(None, 0),
    min_ids_per_features=(None, [0, 2]),
)
def test_random_batches(name: str, values: Any) -> None:
    results = []
    for value in values:
        settings = {"keys": ["a", "b"], "batch_size": 40, "manual_seed": 1, name: value}
        batch = next(iter(tr.RandomRecDataset(**settings)))
        features = batch.sparse_features
        results.append([batch.dense_features.shape, features.values(), features.lengths()])
    assert_differ(results)


COVERED.update(
    f"{kind}.to.non_blocking"
    for kind in ("KeyedJaggedTensor", "JaggedTensor", "KeyedTensor", "Batch")
)


@pytest.mark.parametrize(
    "tensor",
    [
        one(),
        one()["user"],
        tr.KeyedTensor(["a"], [1], torch.ones(1, 1)),
        tr.Batch(torch.ones(1), one(), torch.ones(1)),
    ],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("non_blocking", [False, True])
def test_tensors_are_moved_with_or_without_waiting(tensor: Any, non_blocking: bool) -> None:
    calls: list[Any] = []
    with mock.patch.object(Tensor, "to", lambda self, *_, **named: calls.append(named) or self):
        tensor.to(CPU, non_blocking=non_blocking)
    given = {named["non_blocking"] for named in calls if "non_blocking" in named}
    assert given == {non_blocking}


@covers("TrainPipelineSparseDist", execute_all_batches=(True, False))
def test_a_pipeline_executes_all_batches(name: str, values: Any) -> None:
    results = []
    for value in values:
        model = Model()
        tr.apply_optimizer_in_backward(tr.SGD, model.bags, {"lr": 0.1})
        dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
        pipeline: Any = tr.TrainPipelineSparseDist(model, dense, "cpu", **{name: value})
        outputs = iter(partial(pipeline.progress, iter([one()] * 3)), object())
        results.append(len(list(outputs)))
    assert_differ(results)


@covers(
    "quantize_embeddings",
    inplace=(False, True),
    output_dtype=(torch.float32, torch.float64),
    per_table_weight_dtype=(None, {"user": torch.quint4x2}),
)
def test_quantized_tables(name: str, values: Any) -> None:
    results = []
    for value in values:
        torch.manual_seed(0)
        module = bags()
        optimizer = st.Optimizer(module, torch.optim.SGD, lr=0.1)
        module(one()).values().sum().backward()
        optimizer.step()
        made = tr.quantize_embeddings(module, **{"dtype": torch.qint8, name: value})
        results.append([made is module, made(one()).values()])
    assert_differ(results)


@covers("DistributedModelParallel", device=(None, "cpu"))
def test_modules_are_moved_to_a_device(name: str, values: Any) -> None:
    results = []
    for value in values:
        with mock.patch.object(nn.Module, "to") as to:
            distributed(lambda _: None, **{name: value})
        results.append(to.call_count)
    assert_differ(results)


@covers("get_local_size", world_size=(None, 6))
def test_the_local_size_follows_the_launcher_or_the_argument(name: str, values: Any) -> None:
    started = {"RANK": "0", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}
    with mock.patch.dict(os.environ, started):
        assert_differ([tr.get_local_size(**{name: value}) for value in values])


@covers("EmbeddingShardingPlanner", debug=(True, False))
def test_a_planner_logs_its_plan(name: str, values: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = planners.PlanResult(tr.ShardingPlan({}), "summary")
    results = []
    for value in values:
        caplog.clear()
        with (
            caplog.at_level(logging.INFO, planners.__name__),
            mock.patch.object(planners, "request_plan", return_value=made),
        ):
            tr.EmbeddingShardingPlanner(tr.Topology(2), **{name: value}).plan(Model())
        results.append(len(caplog.records))
    assert_differ(results)


@covers("EmbeddingShardingPlanner.collective_plan", pg=(None, "mine"))
def test_a_plan_is_sent_over_the_group(name: str, values: Any) -> None:
    groups: list[Any] = []
    dist: Any = mock.Mock()
    dist.is_initialized.return_value, dist.get_rank.return_value = True, 0
    dist.get_world_size.return_value = 1
    dist.group.WORLD = "world"
    dist.broadcast_object_list.side_effect = lambda *_, **named: groups.append(named["group"])
    for value in values:
        with mock.patch.object(planners, "dist", dist):
            planner = tr.EmbeddingShardingPlanner(tr.Topology(1))
            planner.collective_plan(Model(), **{name: value})
    assert_differ(groups)


COVERED.update(
    f"{kind.__name__}.dense_device" for kind in (tr.DLRM, tr.DLRM_DCN, tr.DLRM_Projection)
)


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (tr.DLRM, {}),
        (tr.DLRM_DCN, {"dcn_num_layers": 1, "dcn_low_rank_dim": 2}),
        (
            tr.DLRM_Projection,
            {"interaction_branch1_layer_sizes": [4], "interaction_branch2_layer_sizes": [4]},
        ),
    ],
)
def test_dense_layers_are_on_their_device(kind: Any, more: dict[str, Any]) -> None:
    results = []
    for device in (None, META):
        made = kind(
            embedding_bag_collection=bags(),
            dense_in_features=2,
            dense_arch_layer_sizes=[4],
            over_arch_layer_sizes=[1],
            dense_device=device,
            **more,
        )
        results.append([each.device.type for each in made.parameters()])
    assert_differ(results)


COVERED.add("EmbeddingBag.include_last_offset")


def test_the_last_offset_is_included_or_not() -> None:
    results = []
    for value in (False, True):
        bag = st.EmbeddingBag(2, name="offsets", include_last_offset=value)
        results.append(bag(torch.tensor([1, 2]), torch.tensor([0, 1, 2])).detach())
    assert_differ(results)


COVERED.update(
    f"{kind.__name__}.from_pretrained.freeze" for kind in (st.Embedding, st.EmbeddingBag)
)


@pytest.mark.parametrize("kind", [st.Embedding, st.EmbeddingBag])
def test_pretrained_rows_are_frozen_unless_told_otherwise(kind: Any) -> None:
    for freeze in (True, False):
        module = kind.from_pretrained(torch.ones(2, 2), freeze=freeze)
        assert module.anchor.requires_grad is not freeze


@covers(
    "DistributedModelParallel",
    sharders=(
        None,
        [
            tr.EmbeddingBagCollectionSharder(
                {"optimizer": tr.EmbOptimType.SGD, "learning_rate": 0.5}
            )
        ],
    ),
)
def test_sharders_choose_the_optimizer_of_the_tables(name: str, values: Any) -> None:
    results = []
    for value in values:
        model = tr.DistributedModelParallel(Model(), **{name: value})
        try:
            results.append([group["lr"] for group in model.fused_optimizer.param_groups])
        except SparringError:
            results.append(None)
        model.close()
    assert_differ(results)
