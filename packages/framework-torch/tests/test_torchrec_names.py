"""`sparring_torch.torchrec`: names of TorchRec work as in TorchRec, or raise with the alternative."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import runpy
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import init

from sparring import Constant, LocalGroup, Normal, StepContainer, TruncatedNormal, Uniform, Zeros
from sparring.contracts import Collective
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import Optimizer, torchrec
from sparring_torch.torchrec.in_backward import in_backward_optimizers
from sparring_torch.torchrec.names import list_names

ARGUMENTS = ("env", "plan", "sharders")
"""Of `DistributedModelParallel`, which have no meaning for objects of TorchRec's own classes."""


def collection(*tables: str, **settings: Any) -> torchrec.EmbeddingBagCollection:
    configs = [torchrec.EmbeddingBagConfig(name=name, embedding_dim=4) for name in tables]
    return torchrec.EmbeddingBagCollection(configs, storage="memory", **settings)


def batch(*keys: str, shift: int = 0) -> torchrec.KeyedJaggedTensor:
    ids = torch.arange(3 * len(keys)) % 4 + shift
    return torchrec.KeyedJaggedTensor(list(keys), ids, lengths=torch.tensor([2, 1] * len(keys)))


class Model(nn.Module):
    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.bags = collection("user", "item", **settings)
        self.dense = nn.Linear(8, 1)

    def forward(self, features: torchrec.KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        output = self.dense(self.bags(features).values()).squeeze(1)
        return output.square().mean() + output.sum(), output.detach()


def test_each_public_name_of_torchrec_works_or_explains_the_alternative_when_it_is_used() -> None:
    """Releases 1.8.0 and 1.9.2 have these names."""
    names, module = {*list_names(), "QuantEmbeddingBagCollection"}, vars(torchrec)
    assert len(names) > 1400
    assert {"EmbeddingBagCollection", "ModelDeltaTracker", "AUCMetric"} <= names
    for name in sorted(names - set(torchrec.__all__)):
        assert name not in module or isinstance(module[name], type)
        found: Any = getattr(importlib.import_module("sparring_torch.torchrec"), name)

        class Derived(found):  # type: ignore[misc]
            def forward(self, batch: found) -> list[found[int]]:
                return [batch]

        assert not isinstance(1, found)
        assert not isinstance(torch.nn.Linear(1, 1), found)
        assert not hasattr(found, "__wrapped__")
        uses = [found, Derived, lambda found=found: found.MEMBER, lambda own=Derived: own.MEMBER]
        for use in uses:
            with pytest.raises(
                UnsupportedError, match=f"^{name} of TorchRec: .*(use|leave|save|call|give)"
            ):
                use()


def test_the_names_are_those_of_the_installed_release() -> None:
    found = importlib.util.find_spec("torchrec")
    if found is None or found.origin is None:
        pytest.skip("TorchRec is a peer of benchmarks only")
    tool: Any = runpy.run_path(str(Path(__file__).parents[3] / "tools/torchrec_names.py"))
    installed = tool["public_names"](Path(found.origin).parent)
    assert set(installed) <= {*list_names(), *torchrec.__all__}


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("RecMetricModule", "torchmetrics"),
        ("EvalPipelineSparseDist", r"model\.eval\(\)"),
        ("MCHEvictionPolicy", "any int64"),
        ("ModelDeltaTracker", "base="),
        ("get_local_rank", "LOCAL_RANK"),
        ("FusedOptimizer", "apply_optimizer_in_backward"),
        ("GreedyPerfPartitioner", "EmbeddingShardingPlanner"),
        ("LarsSGD", "lamb"),
    ],
)
def test_the_advice_fits_the_name(name: str, advice: str) -> None:
    with pytest.raises(UnsupportedError, match=advice):
        getattr(torchrec, name)()


def test_an_unknown_name_raises_attribute_error() -> None:
    assert not hasattr(torchrec, "NoSuchName")
    for name in torchrec.__all__:
        assert getattr(torchrec, name) is not None


@pytest.mark.parametrize("given", ["parameters", "module", "modules"])
def test_rows_are_updated_in_backward_as_by_a_step(given: str) -> None:
    torch.manual_seed(0)
    model, other = Model(), Model()
    other.dense.load_state_dict(model.dense.state_dict())
    what = {
        "parameters": model.bags.parameters(),
        "module": model,
        "modules": [model.bags],
    }[given]
    torchrec.apply_optimizer_in_backward(
        torchrec.RowWiseAdagrad,
        what,  # type: ignore[arg-type]
        {"lr": 0.1},
    )
    optimizer = Optimizer(other, "rowwise_adagrad", lr=0.1)
    for step in range(3):
        features = batch("user", "item", shift=step)
        model(features)[0].backward()
        other(features)[0].backward()
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        other.eval()
        assert torch.equal(model.bags(features).values(), other.bags(features).values())
        model.train()
        other.train()
    assert model.bags.num_rows() == other.bags.num_rows() == {"user": 5, "item": 6}


def test_a_failed_backward_pass_does_not_affect_the_next_one() -> None:
    bags = collection("item")
    torchrec.apply_optimizer_in_backward(torchrec.SGD, bags, {"lr": 1.0})

    def fail(_: Tensor) -> None:
        raise RuntimeError("in a hook")

    features = batch("item")
    before = bags.eval()(features).values().detach().clone()
    output = bags.train()(features).values()
    output.register_hook(fail)
    with pytest.raises(RuntimeError, match="in a hook"):
        output.sum().backward()
    assert torch.equal(bags.eval()(features).values(), before)
    bags.train()(features).values().sum().backward()
    assert not torch.equal(bags.eval()(features).values(), before)


def test_a_compiled_model_is_trained_in_backward() -> None:
    rows = []
    for is_compiled in (False, True):
        bags = collection("user", "item")
        torchrec.apply_optimizer_in_backward(torchrec.SGD, bags, {"lr": 0.5})

        def loss(features: torchrec.KeyedJaggedTensor, bags: Any = bags) -> Tensor:
            return bags(features).values().square().sum()

        called = torch.compile(loss, backend="aot_eager") if is_compiled else loss
        for step in range(3):
            called(batch("user", "item", shift=step)).backward()
        rows.append(bags.read_embeddings([0, 1, 2, 3, 4, 5], "item"))
    assert torch.equal(*rows)


def test_ranks_may_share_different_numbers_of_bags() -> None:
    """On two ranks with different numbers of bags, bags that examples share train like separate bags per
    example.
    """

    def body(collective: Collective, *, is_shared: bool) -> list[Tensor]:
        users = torch.arange(collective.rank + 1) + 7
        which = torch.arange(4) % len(users)
        items = torch.arange(4) + 3 * collective.rank
        bags = users if is_shared else users[which]
        strides = [[len(bags)], [4]] if is_shared else None
        inverse = (["user", "item"], torch.stack([which, torch.arange(4)])) if is_shared else None
        features = torchrec.KeyedJaggedTensor(
            ["user", "item"],
            torch.cat([bags, items]),
            lengths=torch.ones(len(bags) + 4, dtype=torch.int64),
            stride_per_key_per_rank=strides,
            inverse_indices=inverse,
        )
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            model = Model()
            for each in model.dense.parameters():
                nn.init.constant_(each, 0.5)
            torchrec.apply_optimizer_in_backward(torchrec.Adagrad, model.bags, {"lr": 0.1})
            wrapped = torchrec.DistributedModelParallel(model, container=container)
            for _ in range(3):
                wrapped(features)[0].backward()
            return [model.bags.read_embeddings([7, 8], "user"), model(features)[1]]

    results = []
    for is_shared in (False, True):
        group = LocalGroup(2, deadline_seconds=20)
        with ThreadPoolExecutor(2) as threads:
            futures = [
                threads.submit(body, group.join(rank), is_shared=is_shared) for rank in range(2)
            ]
            results.append([part for future in futures for part in future.result()])
    for plain, shared in zip(*results, strict=True):
        torch.testing.assert_close(shared, plain)


def test_copies_and_modules_in_evaluation_are_not_trained_in_backward() -> None:
    bags = collection("item")
    torchrec.apply_optimizer_in_backward(torchrec.SGD, bags, {"lr": 1.0})
    twin = copy.deepcopy(bags)
    assert in_backward_optimizers(twin) == []
    (optimizer,) = in_backward_optimizers(bags)
    assert in_backward_optimizers(bags) == [optimizer]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (lambda model: model.parameters(), "ordinary parameters to an optimizer of torch.optim"),
        (lambda model: [], "found no table in 0 modules"),
        (lambda model: [model, model], None),
    ],
)
def test_in_backward_supports_only_tables(params: Any, message: str | None) -> None:
    model = Model()
    if message is None:
        torchrec.apply_optimizer_in_backward(torchrec.SGD, params(model), {"lr": 1.0})
        message = "already have such an optimizer"
    with pytest.raises(InvalidArgumentError, match=message):
        torchrec.apply_optimizer_in_backward(torchrec.SGD, params(model), {"lr": 1.0})


def test_a_pipeline_with_rows_updated_in_backward_has_the_bits_of_a_loop() -> None:
    results = []
    for is_pipelined in (False, True):
        torch.manual_seed(0)
        model = Model(device=torch.device("meta"))
        torchrec.apply_optimizer_in_backward(torchrec.Adam, model.bags.parameters(), {"lr": 0.1})
        distributed = torchrec.DistributedModelParallel(
            module=model, device=torch.device("cpu"), sharders=[], plan=None
        )
        assert distributed.plan == {"user": "row_wise", "item": "row_wise"}
        dense = torchrec.KeyedOptimizerWrapper(
            dict(torchrec.in_backward_optimizer_filter(distributed.named_parameters())),
            lambda params: torch.optim.SGD(params, lr=0.1),
        )
        optimizer = torchrec.CombinedOptimizer(
            [("fused", distributed.fused_optimizer), ("dense", dense)]
        )
        batches = [batch("user", "item", shift=step) for step in range(4)]
        outputs = []
        if is_pipelined:
            pipeline = torchrec.TrainPipelineSparseDist(distributed, optimizer, "cpu", True)
            iterator = iter(batches)
            outputs = [pipeline.progress(iterator) for _ in batches]
        else:
            for each in batches:
                optimizer.zero_grad()
                loss, output = distributed(each)
                loss.backward()
                optimizer.step()
                outputs.append(output)
        distributed.eval()
        results.append([*outputs, distributed(batches[0])[1]])
        distributed.close()
    for mine, theirs in zip(*results, strict=True):
        assert torch.equal(mine, theirs)


def test_our_plans_are_accepted() -> None:
    model = collection("user")
    distributed = torchrec.DistributedModelParallel(model, plan={"user": "table_wise"})
    assert distributed.plan == {"user": "table_wise"}
    distributed.close()


def test_several_optimizers_in_backward_are_one_fused_optimizer() -> None:
    model = nn.ModuleList([collection("user"), collection("item")])
    for each, rate in zip(model, (0.1, 0.2), strict=True):
        torchrec.apply_optimizer_in_backward(torchrec.SGD, each, {"lr": rate})
    with StepContainer() as container:
        distributed = torchrec.DistributedModelParallel(model, container=container)
        groups = distributed.fused_optimizer.param_groups
        assert [group["lr"] for group in groups] == [0.1, 0.2]


def test_arguments_of_distributed_models_without_a_meaning_are_rejected() -> None:
    with StepContainer() as container:
        for name in ARGUMENTS:
            with pytest.raises(InvalidArgumentError, match=f"{name}: .*(leave|create)"):
                torchrec.DistributedModelParallel(
                    Model(), container=container, **{name: [object()]}
                )
        model = Model()
        model.dense = nn.Linear(8, 1, device="meta")
        with pytest.raises(InvalidArgumentError, match=r"'dense.weight'.*device 'meta'"):
            torchrec.DistributedModelParallel(model, container=container)
        distributed = torchrec.DistributedModelParallel(Model(), container=container)
        with pytest.raises(InvalidArgumentError, match="call apply_optimizer_in_backward before"):
            _ = distributed.fused_optimizer


def test_a_keyed_optimizer_saves_state_by_name() -> None:
    model = Model()

    def make() -> torchrec.KeyedOptimizerWrapper:
        return torchrec.KeyedOptimizerWrapper(
            dict(model.named_parameters()), lambda params: torch.optim.Adam(params, lr=0.1)
        )

    optimizer = make()
    assert list(optimizer.params) == ["dense.weight", "dense.bias"]
    model.dense(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    saved = copy.deepcopy(optimizer.state_dict())
    assert saved["state"].keys() == {"dense.weight", "dense.bias"}
    other = make()
    other.load_state_dict(saved)
    assert torch.equal(
        other.state[model.dense.bias]["exp_avg"], optimizer.state[model.dense.bias]["exp_avg"]
    )
    scheduler = torch.optim.lr_scheduler.StepLR(other, 1)
    other.step()
    other.zero_grad()
    scheduler.step()
    assert other.param_groups[0]["lr"] == pytest.approx(0.01)
    optimizer.zero_grad()
    assert model.dense.bias.grad is None
    saved["param_groups"][0]["params"] = ["dense.weight"]
    with pytest.raises(InvalidArgumentError, match="create the optimizer for the same parameters"):
        other.load_state_dict(saved)


def test_positions_in_a_bag_have_weights_that_are_learned() -> None:
    module = torchrec.PositionWeightedModuleCollection({"item": 3})
    with torch.no_grad():
        module.position_weights["item"].copy_(torch.tensor([1.0, 10.0, 100.0]))
    features = torchrec.KeyedJaggedTensor(
        ["user", "item"], torch.tensor([9, 7, 8, 7, 5]), lengths=torch.tensor([1, 0, 3, 1])
    )
    weighted = module(features)
    assert weighted.weights().tolist() == [1.0, 1.0, 10.0, 100.0, 1.0]
    collection("user", "item", is_weighted=True)(weighted).values().sum().backward()
    assert module.position_weights["item"].grad is not None
    alone = torchrec.PositionWeightedModule(3)(features["item"])
    assert alone.weights().tolist() == [1.0] * 4
    with pytest.raises(InvalidArgumentError, match="a bag of 3 ids, but weights for 2 positions"):
        torchrec.PositionWeightedModule(2)(features["item"])


@pytest.mark.parametrize(
    ("function", "initializer"),
    [
        (init.zeros_, Zeros()),
        (init.ones_, Constant(1.0)),
        (partial(init.constant_, val=2.0), Constant(2.0)),
        (init.uniform_, Uniform(0.0, 1.0)),
        (partial(init.uniform_, a=-0.1, b=0.1), Uniform(-0.1, 0.1)),
        (partial(init.normal_, std=0.5), Normal(0.0, 0.5)),
        (init.trunc_normal_, TruncatedNormal(0.0, 1.0)),
        (partial(init.trunc_normal_, std=0.02), Normal(0.0, 0.02)),
    ],
)
def test_functions_of_torch_are_accepted_as_initializers(
    function: Any, initializer: object
) -> None:
    config = torchrec.EmbeddingBagConfig(name="item", embedding_dim=4, init_fn=function)
    (declared,) = torchrec.EmbeddingBagCollection([config]).agent.declarations
    assert declared.table.initializer == initializer


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.uniform_(-1, 1),
        init.xavier_uniform_,
        init.constant_,
        partial(init.uniform_, generator=torch.Generator()),
        partial(init.trunc_normal_, std=0.5),
    ],
)
def test_a_function_that_fills_a_matrix_is_rejected(function: Any) -> None:
    config = torchrec.EmbeddingBagConfig(name="item", embedding_dim=4, init_fn=function)
    with pytest.raises(InvalidArgumentError, match=r"init_fn of table 'item': .*Uniform\(low"):
        torchrec.EmbeddingBagCollection([config])
