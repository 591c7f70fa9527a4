"""Counterparts of parts of TorchRec: optimizers, sharders, precision of messages, plans."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring import ExchangeOptions
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch import Optimizer, torchrec
from sparring_torch.torchrec import planner as planners
from sparring_torch.torchrec.reservations import host_memory_bytes

from .test_torchrec_names import batch, collection


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = collection("user")
        self.dense = nn.Linear(4, 1)

    def forward(self, features: torchrec.KeyedJaggedTensor) -> Tensor:
        output: Tensor = self.dense(self.bags(features).values()).square().sum()
        return output


# -- optimizers


def stepped(make: Any, kind: Any, **settings: Any) -> Tensor:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(5, 3))
    optimizer = make([weight], kind, settings)
    for _ in range(4):
        optimizer.zero_grad()
        (weight * torch.randn(5, 3)).sum().backward()
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lr": 0.1, "lr_decay": 0.5, "weight_decay": 0.2},
        {"initial_accumulator_value": 0.3, "eps": 0.1, "maximize": True},
    ],
)
def test_rowwise_adagrad_follows_its_formula(settings: dict[str, Any]) -> None:
    found = stepped(
        lambda params, kind, rest: kind(params, **rest), torchrec.RowWiseAdagrad, **settings
    )
    torch.manual_seed(0)
    rows = torch.randn(5, 3)
    given = {"lr": 0.01, "lr_decay": 0.0, "weight_decay": 0.0, "eps": 1e-10} | settings
    squares = torch.full((5, 1), given.get("initial_accumulator_value", 0.0))
    for step in range(4):
        gradient = torch.randn(5, 3) * (-1 if given.get("maximize") else 1)
        gradient = gradient + given["weight_decay"] * rows
        squares = squares + gradient.square().mean(1, keepdim=True)
        lr = given["lr"] / (1 + step * given["lr_decay"])
        rows = rows - lr * gradient / (squares.sqrt() + given["eps"])
    torch.testing.assert_close(found, rows)
    peer = pytest.importorskip("torchrec", reason="TorchRec is a peer of benchmarks only")
    theirs = stepped(
        lambda params, kind, rest: kind(params, **rest), peer.optim.RowWiseAdagrad, **settings
    )
    torch.testing.assert_close(found, theirs)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (torchrec.RowWiseAdagrad, "rowwise_adagrad"),
        (torchrec.LAMB, "lamb"),
        (torchrec.PartialRowWiseAdam, "partial_rowwise_adam"),
    ],
)
def test_classes_of_row_optimizers_are_replaced_by_update_methods(kind: Any, method: str) -> None:
    rows = []
    for given in (kind, method):
        bags = collection("user")
        torchrec.apply_optimizer_in_backward(given, bags.parameters(), {"lr": 0.1})
        bags(batch("user")).values().square().sum().backward()
        rows.append(bags.read_embeddings(range(4)))
    assert torch.equal(*rows)
    assert Optimizer(collection("user"), kind, lr=0.1).routes == {"user": method}
    if kind is torchrec.RowWiseAdagrad:
        assert kind([]).param_groups[0]["params"] == []
        with pytest.raises(
            InvalidArgumentError, match="RowWiseAdagrad: eps must be at least 0, found -1"
        ):
            kind([], eps=-1)
    else:
        with pytest.raises(UnsupportedError, match=f"{kind.__name__}: found ordinary parameters"):
            kind([nn.Parameter(torch.ones(2))])


def test_a_keyed_optimizer_of_a_subclass_saves_state_by_name() -> None:
    class Signs(torchrec.KeyedOptimizer):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                for each in group["params"]:
                    each.data -= group["lr"] * each.grad.sign()
                    self.state[each] = {"steps": self.state.get(each, {"steps": 0})["steps"] + 1}

    model = Model()
    named = dict(model.named_parameters())
    dense = [model.dense.weight, model.dense.bias]
    optimizer = Signs(named, {}, [{"params": dense, "lr": 0.5}])
    assert list(optimizer.params) == ["dense.weight", "dense.bias"]
    before = copy.deepcopy(model.dense.bias)
    model.dense(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert torch.equal(model.dense.bias, before - 0.5)
    saved = optimizer.state_dict()
    assert saved["state"] == {"dense.weight": {"steps": 1}, "dense.bias": {"steps": 1}}
    other = Signs(named, {}, [{"params": dense, "lr": 0.1}])
    other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == 0.5
    assert other.state[model.dense.bias] == {"steps": 1}
    with pytest.raises(InvalidArgumentError, match="create the optimizer for the same parameters"):
        Signs(named, {}, [{"params": dense[:1]}]).load_state_dict(saved)
    with pytest.raises(NotImplementedError, match="KeyedOptimizer does not define step"):
        torchrec.KeyedOptimizer(named, {}, [{"params": dense}]).step()


def test_an_optimizer_without_parameters_left_is_wrapped() -> None:
    bags = collection("user")
    wrapper = torchrec.KeyedOptimizerWrapper(
        dict(bags.named_parameters()), lambda params: torch.optim.SGD(params, lr=0.1)
    )
    wrapper.step()
    assert wrapper.state_dict()["state"] == wrapper.params == {}


@pytest.mark.parametrize("clipping", list(torchrec.GradientClipping))
def test_gradients_are_clipped_before_the_step(clipping: torchrec.GradientClipping) -> None:
    results = []
    for is_wrapped in (False, True):
        torch.manual_seed(0)
        model = Model()
        dense = torch.optim.SGD(model.dense.parameters(), lr=0.5)
        rows = Optimizer(model, torch.optim.SGD, lr=0.5)
        optimizer: Any = torchrec.CombinedOptimizer([rows, dense])
        if is_wrapped:
            optimizer = torchrec.GradientClippingOptimizer(optimizer, clipping, 0.01)
            scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
        for _ in range(3):
            optimizer.zero_grad()
            model(batch("user")).backward()
            if not is_wrapped and clipping is torchrec.GradientClipping.NORM:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            if not is_wrapped and clipping is torchrec.GradientClipping.VALUE:
                torch.nn.utils.clip_grad_value_(model.parameters(), 0.01)
            optimizer.step()
            if is_wrapped:
                scheduler.step()
        results.append(
            [*map(Tensor.detach, model.dense.parameters()), model.bags.read_embeddings(range(4))]
        )
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_clipping_without_a_limit_is_rejected() -> None:
    rows = Optimizer(collection("user"), torch.optim.SGD, lr=0.5)
    with pytest.raises(InvalidArgumentError, match="max_gradient must be positive, found 0"):
        torchrec.GradientClippingOptimizer(rows, torchrec.GradientClipping.NORM, 0)


# -- sharders, precision of messages, and plans


@pytest.mark.parametrize("name", ["SGD", "ADAM", "EXACT_ADAGRAD", "EXACT_ROWWISE_ADAGRAD"])
def test_fused_params_of_a_sharder_are_the_optimizer_of_its_collections(name: str) -> None:
    methods = {"SGD": "sgd", "ADAM": "adam", "EXACT_ADAGRAD": "adagrad"}
    rows = []
    for is_fused in (False, True):
        torch.manual_seed(0)
        model = Model()
        sharders: list[Any] = torchrec.get_default_sharders()
        if is_fused:
            fused_params = {
                "optimizer": torchrec.EmbOptimType[name],
                "learning_rate": 0.2,
                "eps": 1e-3,
            }
            fused_params = {k: v for k, v in fused_params.items() if k != "eps" or name != "SGD"}
            sharders[0] = torchrec.EmbeddingBagCollectionSharder(fused_params)
        else:
            hyper = {"lr": 0.2} if name == "SGD" else {"lr": 0.2, "eps": 1e-3}
            method = methods.get(name, "rowwise_adagrad")
            torchrec.apply_optimizer_in_backward(method, model.bags.parameters(), hyper)
        distributed = torchrec.DistributedModelParallel(model, sharders=sharders)
        for _ in range(3):
            distributed(batch("user")).backward()
        assert [group["lr"] for group in distributed.fused_optimizer.param_groups] == [0.2]
        rows.append(model.bags.read_embeddings(range(4)))
        distributed.close()
    torch.testing.assert_close(*rows)


def test_fused_params_without_a_counterpart_are_rejected() -> None:
    sharder: Any = torchrec.EmbeddingBagCollectionSharder
    sgd = torchrec.EmbOptimType.EXACT_SGD
    with pytest.raises(UnsupportedError, match=r"found optimizer <EmbOptimType\.LARS_SGD"):
        sharder({"optimizer": torchrec.EmbOptimType.LARS_SGD})
    with pytest.raises(
        UnsupportedError, match=r"found weight_decay=0.1; call apply_optimizer_in_backward"
    ):
        sharder({"optimizer": sgd, "weight_decay": 0.1})
    sharder({"optimizer": sgd, "weight_decay": 0.0})
    model = Model()
    torchrec.apply_optimizer_in_backward("sgd", model.bags, {"lr": 0.1})
    with pytest.raises(InvalidArgumentError, match="already have such an optimizer"):
        torchrec.DistributedModelParallel(model, sharders=[sharder({"optimizer": sgd})])


def test_precisions_of_the_wire_come_from_the_sharders() -> None:
    def registry(name: str) -> ExchangeOptions:
        return torchrec.get_qcomm_codecs_registry(
            torchrec.QCommsConfig(forward_precision=torchrec.CommType[name])
        )

    for name, wanted in (
        ("FP32", "exact"),
        ("FP16", "float16"),
        ("BF16", "bfloat16"),
        ("INT8", "int8"),
    ):
        assert registry(name) == ExchangeOptions(row_wire_dtype=wanted)
    sharder: Any = torchrec.EmbeddingBagCollectionSharder
    half = sharder(qcomm_codecs_registry=registry("FP16"))
    distributed = torchrec.DistributedModelParallel(Model(), sharders=[half])
    assert distributed.container.state.exchange.options == registry("FP16")
    distributed.close()
    other = torchrec.EmbeddingCollectionSharder(qcomm_codecs_registry=registry("INT8"))
    with pytest.raises(UnsupportedError, match="found 2 registries with different precisions"):
        torchrec.DistributedModelParallel(Model(), sharders=[half, other])
    with pytest.raises(
        InvalidArgumentError, match="found an exchange, and sharders with a different"
    ):
        torchrec.DistributedModelParallel(Model(), sharders=[half], exchange=ExchangeOptions())
    with pytest.raises(
        UnsupportedError, match=r"found .*precision CommType\.FP8, which is not supported"
    ):
        registry("FP8")


def test_a_model_has_its_plan_under_torchrecs_name() -> None:
    plan = torchrec.ShardingPlan(
        {"bags": {"user": torchrec.ParameterSharding("table_wise", ranks=[0])}}
    )
    distributed = torchrec.DistributedModelParallel(Model(), plan=plan)
    assert distributed._plan.plan == plan.plan
    distributed.close()
    for sharding_type, kernel in (("row_wise", "dense"), ("data_parallel", "quant")):
        with pytest.raises(
            UnsupportedError, match=f"found compute_kernel '{kernel}' with sharding type"
        ):
            torchrec.ParameterSharding(sharding_type, kernel)


def test_a_pipeline_drops_the_waiting_batch_if_it_is_disconnected() -> None:
    class Seen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = collection("user")

        def forward(self, features: torchrec.KeyedJaggedTensor) -> tuple[Tensor, int]:
            return self.bags(features).values().sum(), int(features.values()[0])

    def batches(start: int) -> Any:
        for number in range(start, start + 3):
            yield torchrec.KeyedJaggedTensor(["user"], torch.tensor([number]), lengths=[1])

    model = Seen()
    torchrec.apply_optimizer_in_backward(torchrec.SGD, model.bags, {"lr": 0.1})
    optimizer = torchrec.CombinedOptimizer([torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.3)])
    pipeline: Any = torchrec.TrainPipelineSparseDist(model, optimizer, "cpu")
    assert pipeline._optimizer is optimizer
    assert not pipeline._connected
    first = batches(0)
    assert pipeline.progress(first) == 0
    assert pipeline._connected
    assert pipeline.progress(batches(10)) == 10
    assert pipeline.progress(first) == 1  # which waited
    pipeline._connected = False
    with pytest.raises(StopIteration):  # its last batch was dropped
        pipeline.progress(first)
    assert pipeline.progress(batches(20)) == 20
    with pytest.raises(InvalidArgumentError, match="only False is supported"):
        pipeline._connected = True


def test_a_reservation_leaves_memory_for_ordinary_parameters() -> None:
    model = Model()  # 5 parameters of 4 bytes
    assert torchrec.FixedPercentageStorageReservation(0.25).available_bytes(1000, model) == 750
    reservation = torchrec.HeuristicalStorageReservation(0.25)
    assert reservation.available_bytes(1000, model) == 750 - 6 * 20
    with pytest.raises(
        InvalidArgumentError, match=r"which 120 are reserved .*dense_tensor_estimate"
    ):
        reservation.available_bytes(100, model)
    with pytest.raises(InvalidArgumentError, match="percentage must be from 0 to 1, found 5"):
        torchrec.HeuristicalStorageReservation(5)
    planner: Any = torchrec.EmbeddingShardingPlanner(storage_reservation=reservation)
    known = torchrec.Topology(2, ddr_cap=1000)
    assert planner._memory_bytes(known, model) == 630
    found = planner._memory_bytes(torchrec.Topology(2), model)
    assert found == int(host_memory_bytes() // 2 * 0.75) - 120
    plain: Any = torchrec.EmbeddingShardingPlanner()
    assert plain._memory_bytes(known, model) == 1000


def test_ranks_of_a_node_are_read_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 0), ("WORLD_SIZE", 8), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 4)):
        monkeypatch.setenv(name, str(value))
    assert torchrec.get_local_size() == 4
    assert torchrec.get_local_size(12) == 4
    assert torchrec.get_local_size(6) == 6


@pytest.mark.parametrize(("world_size", "per_node"), [(8, 4), (6, 6)])
def test_a_planner_without_topology_counts_the_ranks_of_a_node_like_get_local_size(
    monkeypatch: pytest.MonkeyPatch, world_size: int, per_node: int
) -> None:
    ranks = {"RANK": 0, "WORLD_SIZE": world_size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4}
    for name, value in ranks.items():
        monkeypatch.setenv(name, str(value))
    topology = planners._find_topology()
    assert (topology.world_size, topology.local_world_size) == (world_size, per_node)
    assert torchrec.get_local_size() == per_node


@pytest.mark.parametrize("name", ["UINT8", "INT4", "INT2", "INT32", "INT64", "NFP8"])
def test_a_table_that_is_trained_has_no_quantized_data_type(name: str) -> None:
    config = torchrec.EmbeddingBagConfig(
        name="user", embedding_dim=4, data_type=torchrec.DataType[name]
    )
    with pytest.raises(InvalidArgumentError, match=rf"found <DataType.{name}.*quantize_embeddings"):
        torchrec.EmbeddingBagCollection([config])


def test_a_table_without_pooling_is_not_a_bag() -> None:
    config = torchrec.EmbeddingBagConfig(
        name="user", embedding_dim=4, pooling=torchrec.PoolingType.NONE
    )
    with pytest.raises(
        InvalidArgumentError, match=r"found <PoolingType.NONE.*use an EmbeddingCollection"
    ):
        torchrec.EmbeddingBagCollection([config])


def test_features_are_regrouped_under_names() -> None:
    keyed = torchrec.KeyedTensor(["a", "b"], [1, 2], torch.arange(6.0).reshape(2, 3))
    found = torchrec.KTRegroupAsDict([["b"], ["b", "a"]], ["left", "right"])([keyed])
    assert found["left"].tolist() == [[1, 2], [4, 5]]
    assert found["right"].tolist() == [[1, 2, 0], [4, 5, 3]]
    with pytest.raises(InvalidArgumentError, match="found 1 names for 2 groups"):
        torchrec.KTRegroupAsDict([["b"], ["a"]], ["left"])
