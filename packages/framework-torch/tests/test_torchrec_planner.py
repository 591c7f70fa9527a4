"""TorchRec's planning: create a planner, plan, distribute; unsupported arguments raise."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparring.contracts import PlanRequest
from sparring.errors import (
    CapacityError,
    InvalidArgumentError,
    PluginError,
    UnsupportedError,
)
from sparring_torch import Embedding, torchrec
from sparring_torch.torchrec import planner as planners

pytest.importorskip("sparring_plan", reason='pip install "sparring[plan]"')

TWO = torchrec.Topology(world_size=2, compute_device="cpu")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = torchrec.EmbeddingBagCollection(
            [
                torchrec.EmbeddingBagConfig(name="item", embedding_dim=8, feature_names=["a", "b"]),
                torchrec.EmbeddingBagConfig(name="shop", embedding_dim=4, num_embeddings=50),
            ]
        )
        self.one = torchrec.EmbeddingCollection(
            [torchrec.EmbeddingConfig(name="user", embedding_dim=4)]
        )


def only(*kinds: torchrec.ShardingType, **more: Any) -> torchrec.ParameterConstraints:
    return torchrec.ParameterConstraints(sharding_types=[each.value for each in kinds], **more)


def test_the_planning_program_of_torchrec_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sparring_torch")
    model = nn.Sequential(torchrec.EmbeddingBagCollection(Model().bags.embedding_bag_configs()))
    sharders = torchrec.get_default_sharders()
    planner = torchrec.EmbeddingShardingPlanner(
        topology=torchrec.Topology(world_size=1, compute_device="cpu"), batch_size=64
    )
    plan = planner.collective_plan(model, sharders)
    assert plan.plan["0"]["item"].sharding_type == torchrec.ShardingType.ROW_WISE.value
    distributed = torchrec.DistributedModelParallel(model, plan=plan, sharders=sharders)
    assert distributed.plan == {"item": "row_wise", "shop": "row_wise"}
    assert isinstance(distributed.module[0], torchrec.ShardedEmbeddingBagCollection)
    distributed.close()


def test_a_plan_has_each_module_and_each_table(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sparring_torch")
    constraints = {
        "item": only(torchrec.ShardingType.TABLE_WISE, pooling_factors=[3.0, 9.0]),
        "user": only(torchrec.ShardingType.DATA_PARALLEL),
    }
    planner = torchrec.EmbeddingShardingPlanner(TWO, 64, constraints=constraints)
    plan = planner.plan(Model(), torchrec.get_default_sharders())
    assert plan.plan.keys() == {"bags", "one"}
    item = plan.plan["bags"]["item"]
    assert (item.sharding_type, item.compute_kernel) == ("table_wise", "fused")
    assert item.ranks in ([0], [1])
    user = (plan.get_plan_for_module("one") or {})["user"]
    assert (user.sharding_type, user.compute_kernel, user.ranks) == (
        "data_parallel",
        "dense",
        [0, 1],
    )
    assert plan.get_plan_for_module("two") is None
    assert plan.tables.keys() == {"item", "shop", "user"}
    assert [line.split()[:3] for line in str(plan).splitlines()[1:]] == [
        ["bags", "item", "table_wise"],
        ["bags", "shop", plan.plan["bags"]["shop"].sharding_type],
        ["one", "user", "data_parallel"],
    ]
    said = "\n".join(each.getMessage() for each in caplog.records)
    assert "tables item, user: the size is unknown" in said
    assert "plan auto: 3 tables on 2 ranks" in said
    caplog.clear()
    torchrec.EmbeddingShardingPlanner(TWO, debug=False).plan(Model())
    assert not caplog.records


def test_settings_of_the_user_reach_the_planner(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[PlanRequest] = []
    monkeypatch.setattr(
        planners,
        "request_plan",
        lambda request, _: asked.append(request) or planners.PlanResult(torchrec.ShardingPlan({})),
    )
    topology = torchrec.Topology(
        world_size=8,
        compute_device="cuda",
        local_world_size=4,
        intra_host_bw=1e6,
        inter_host_bw=1e5,
    )
    constraints = {
        "item": torchrec.ParameterConstraints(
            pooling_factors=[3.0, 9.0], num_poolings=[2.0], is_weighted=True
        )
    }
    model = Model()
    torchrec.apply_optimizer_in_backward("rowwise_adagrad", model.bags, {"lr": 0.1})
    torchrec.apply_optimizer_in_backward(torch.optim.Adam, model.one, {"lr": 0.1})
    plan = torchrec.EmbeddingShardingPlanner(topology, 64, constraints=constraints).plan(model)
    assert {each.kind for each in map(plan.sharding_of, plan.tables) if each} == {"row_wise"}
    (request,) = asked
    assert (request.world_size, request.ranks_per_node, request.samples) == (8, 4, 64)
    assert (request.memory_bytes, request.near_gbit) == (32 << 30, 8)
    assert request.far_gbit == pytest.approx(3.2)
    item, shop, user = request.tables
    assert [(each.ids, each.is_weighted, each.pooling) for each in item.features] == [
        (6.0, True, "sum"),
        (18.0, True, "sum"),
    ]
    assert [each.pooling for each in user.features] == [None]
    assert [each.supports_pooling for each in request.tables] == [True, True, False]
    assert (shop.rows, item.rows) == (50, None)
    assert (item.method, user.method) == ("rowwise_adagrad", "Adam")
    assert torchrec.Topology(2, "cpu", 5, 7).memory_bytes == 7
    assert torchrec.Topology(2, "cuda", 5, 7).memory_bytes == 5
    assert torchrec.Topology(2).memory_bytes is None


def test_types_have_the_values_of_torchrec_and_map_to_ours() -> None:
    assert {each.value for each in torchrec.ShardingType} == {
        "data_parallel",
        "table_wise",
        "column_wise",
        "row_wise",
        "table_row_wise",
        "table_column_wise",
        "grid_shard",
    }
    of = torchrec.ParameterSharding
    assert of("grid_shard").sharding().kind == "grid"
    divided = of("column_wise", ranks=[1, 0], transfer="pooled", columns=2)
    assert divided.of(divided.sharding(), 2) == divided
    assert of(torchrec.ShardingType.TABLE_WISE, ranks=[1]).sharding().ranks == (1,)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"expected a value of ShardingType"):
        of(3).sharding()  # type: ignore[arg-type]


def test_a_table_of_two_modules_has_one_sharding() -> None:
    of = torchrec.ParameterSharding
    with pytest.raises(InvalidArgumentError, match="'t' is in two modules"):
        torchrec.ShardingPlan({"a": {"t": of("row_wise")}, "b": {"t": of("table_wise")}})
    assert torchrec.ShardingPlan({"a": {"t": of("row_wise")}, "b": {"t": of("row_wise")}}).tables


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        ({"itme": torchrec.ParameterConstraints()}, "did you mean 'item'"),
        ({"item": only(torchrec.ShardingType.TABLE_WISE, pooling_factors=[1, 2, 3])}, "2 features"),
        ({"item": torchrec.ParameterConstraints(num_poolings=[1, 2, 3])}, "num_poolings"),
        (
            {"item": torchrec.ParameterConstraints(sharding_types=["no_such_kind"])},
            "restricted to no_such_kind",
        ),
    ],
)
def test_constraints_that_do_not_match_are_rejected(constraints: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        torchrec.EmbeddingShardingPlanner(TWO, constraints=constraints).plan(Model())


def test_constraints_and_a_placement_must_agree() -> None:
    model = Embedding(4, name="user", placement="replicated")
    for kind in torchrec.ShardingType:
        planner = torchrec.EmbeddingShardingPlanner(TWO, constraints={"user": only(kind)})
        if kind is torchrec.ShardingType.DATA_PARALLEL:
            assert planner.plan(model).tables
            continue
        with pytest.raises(InvalidArgumentError, match="placement 'replicated'"):
            planner.plan(model)


def test_tables_that_do_not_fit_are_rejected_with_the_missing_bytes() -> None:
    topology = torchrec.Topology(2, ddr_cap=1 << 20)
    tables = [torchrec.EmbeddingBagConfig(name="big", embedding_dim=64, num_embeddings=10**7)]
    with pytest.raises(CapacityError, match="are missing on each of 2 ranks"):
        torchrec.EmbeddingShardingPlanner(topology).plan(torchrec.EmbeddingBagCollection(tables))


@pytest.mark.parametrize("name", sorted(planners._PLANNER_ADVICE))
def test_arguments_of_a_planner_without_a_meaning_are_rejected_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"leave out {name}: "):
        torchrec.EmbeddingShardingPlanner(**{name: object()})
    torchrec.EmbeddingShardingPlanner(**{name: None})


@pytest.mark.parametrize("name", sorted(planners._CONSTRAINTS_ADVICE))
def test_constraints_without_a_meaning_are_rejected_by_name(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"leave out {name}: "):
        torchrec.ParameterConstraints(**{name: 1})


def test_other_arguments_without_a_meaning_are_rejected() -> None:
    with pytest.raises(TypeError, match="did you mean 'proposer'"):
        torchrec.EmbeddingShardingPlanner(propser=1)
    with pytest.raises(UnsupportedError, match="leave out hbm_mem_bw"):
        torchrec.Topology(2, hbm_mem_bw=3.0)
    with pytest.raises(InvalidArgumentError, match="multiple of local_world_size 2"):
        torchrec.Topology(3, local_world_size=2)
    with pytest.raises(InvalidArgumentError, match="found 'mtia'"):
        torchrec.Topology(3, "mtia")
    with pytest.raises(UnsupportedError, match=r"leave out compute kernels \['fused_uvm'\]"):
        torchrec.ParameterConstraints(compute_kernels=["fused", "fused_uvm"])
    with pytest.raises(UnsupportedError, match="leave out feature_names"):
        torchrec.ParameterConstraints(feature_names=["a"])
    for sharder in (torchrec.EmbeddingBagCollectionSharder, torchrec.EmbeddingCollectionSharder):
        assert "row_wise" in sharder().sharding_types("cpu")
        with pytest.raises(InvalidArgumentError, match="fused_params: found no 'optimizer' in"):
            sharder(fused_params={"learning_rate": 0.1})
        with pytest.raises(
            UnsupportedError, match=r"found qcomm_codecs_registry of type dict; use"
        ):
            sharder(qcomm_codecs_registry={"forward": 1})
    torchrec.EmbeddingCollectionSharder(use_index_dedup=True)


def test_sharders_must_be_ours_and_have_each_collection() -> None:
    some = [torchrec.EmbeddingBagCollectionSharder()]
    with pytest.raises(InvalidArgumentError, match="found none for EmbeddingCollection 'one'"):
        torchrec.DistributedModelParallel(Model(), sharders=some)
    with pytest.raises(InvalidArgumentError, match="found object; leave sharders out"):
        torchrec.EmbeddingShardingPlanner(TWO).plan(Model(), [object()])


def test_a_plan_for_other_ranks_is_rejected() -> None:
    plan = torchrec.EmbeddingShardingPlanner(
        TWO, constraints={"item": only(torchrec.ShardingType.ROW_WISE)}
    ).plan(Model())
    with pytest.raises(InvalidArgumentError, match="rank 1; this job has ranks 0 to 0"):
        torchrec.DistributedModelParallel(Model(), plan=plan)


def test_an_unknown_kind_in_a_manual_plan_is_rejected() -> None:
    plan = torchrec.ShardingPlan({"bags": {"item": torchrec.ParameterSharding("tabel_wise")}})
    with pytest.raises(PluginError, match="did you mean 'table_wise'"):
        torchrec.DistributedModelParallel(Model(), plan=plan)


SCRIPT = """
import sys
import torch
import torch.distributed as dist
from sparring_torch.torchrec import *

dist.init_process_group("gloo")
tables = [EmbeddingBagConfig(name=name, embedding_dim=4) for name in ("item", "user")]
bags = EmbeddingBagCollection(tables)
wise = ParameterConstraints(sharding_types=[ShardingType.TABLE_WISE.value])
given = {"item": wise, "user": wise, **({"itme": wise} if "--wrong" in sys.argv else {})}
planner = EmbeddingShardingPlanner(batch_size=8, constraints=given)
plan = planner.collective_plan(bags, get_default_sharders(), dist.group.WORLD)
model = DistributedModelParallel(bags, plan=plan, sharders=get_default_sharders())
features = KeyedJaggedTensor(["item", "user"], torch.tensor([1, 2]), lengths=torch.tensor([1, 1]))
model.eval()(features)
print(sorted((name, each.ranks) for name, each in plan.plan[""].items()), flush=True)
model.close()
"""


@pytest.mark.long
def test_ranks_of_torchrun_get_the_plan_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr"]
    command += ["127.0.0.1", "--nproc-per-node", "2", "script.py"]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options],
            check=False,  # the assertions below show its output
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=150,
        )

    done = run()
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == second
    assert {"item", "user"} == {name for name, _ in ast.literal_eval(first)}
    refused = run("--wrong")
    assert "found no table 'itme'; did you mean 'item'?" in refused.stderr
    assert "the planner of rank 0 failed: constraints: there is no table 'itme'" in refused.stderr
