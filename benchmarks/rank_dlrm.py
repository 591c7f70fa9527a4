"""One rank of a DLRM over gloo or shared memory: compared with TorchRec over gloo, or with other plans.

Started by `benchmarks.ranks` and `benchmarks.planned_steps` with one argument, JSON. Rank 0 writes JSON
to the file `output`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.dlrm import DIM, EPS, LR, NUM_TABLES, Batch, Dense, batch_of, features_of
from benchmarks.rank_exchange import join, slowest_of_each_round
from sparring import StepContainer, _native
from sparring.adapter import EnvironmentRendezvous
from sparring.contracts import EnvironmentOptions, TableSharding
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig
from sparring_torch.optim.optimizer import Optimizer

__all__ = ["main"]

Weights = list[np.ndarray[Any, Any]]
NAMES = [f"t{i}" for i in range(NUM_TABLES)]


def main() -> None:
    """Runs the measurements that the argument specifies."""
    asked = json.loads(sys.argv[1])
    dist.init_process_group("gloo")
    rendezvous = EnvironmentRendezvous(EnvironmentOptions())
    with ExitStack() as closing:
        meeting = closing.enter_context(join("torch", rendezvous))
        random = np.random.default_rng(0)
        shape = (asked["num_rows"], DIM)
        weights = [
            random.standard_normal(shape, np.float32) * np.float32(0.05) for _ in range(NUM_TABLES)
        ]
        random = np.random.default_rng(1 + meeting.rank)
        sizes = asked["num_rows"], asked["num_samples"], asked.get("bag_size", 1)
        batches = [batch_of(random, *sizes) for _ in range(4)]
        plans = {
            name: {table: TableSharding(**each) for table, each in plan.items()}
            for name, plan in asked.get("plans", {}).items()
        } or {
            "ours": make_plan(
                asked.get("kind", "row_wise"), asked.get("transfer", "rows"), meeting.world_size
            )
        }
        contenders: dict[str, Callable[[], Any]] = {}
        for name, plan in plans.items():
            collective = join(asked["collective"], rendezvous)
            container = StepContainer(collective=collective, rendezvous=rendezvous, plan=plan)
            closing.enter_context(container)
            contenders[name] = _ours(weights, batches, container)
        if "plans" not in asked:
            contenders["theirs"] = _theirs(weights, batches)
        losses = []
        for _ in range(4):
            found = torch.tensor([step() for step in contenders.values()])
            dist.all_reduce(found)
            losses.append((found / meeting.world_size).tolist())
        contenders["dense"] = _dense_alone(batches)
        seconds = slowest_of_each_round(meeting, contenders, asked["rounds"])
        cpu_seconds = {name: _cpu_seconds(run) for name, run in contenders.items()}
    if rendezvous.membership().rank == 0:
        Path(asked["output"]).write_text(
            json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "losses": losses})
        )
    dist.destroy_process_group()


def _cpu_seconds(run: Callable[[], object], num_steps: int = 8) -> float:
    """Returns the CPU time of a step on this rank, which depends less on other programs."""
    dist.barrier()
    begin = time.process_time()
    for _ in range(num_steps):
        run()
    return (time.process_time() - begin) / num_steps


def _stepping(
    loss_of: Callable[[Any, Batch], torch.Tensor],
    features: list[Any],
    batches: list[Batch],
    parameters: list[nn.Parameter],
    update: Callable[[], object],
) -> Callable[[], float]:
    adam = torch.optim.Adam(parameters, lr=1e-3)
    turns = cycle(list(zip(features, batches, strict=True)))

    def step() -> float:
        loss = loss_of(*next(turns))
        loss.backward()
        update()
        adam.step()
        adam.zero_grad()
        return float(loss.detach())

    return step


def _loss(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return nn.functional.binary_cross_entropy_with_logits(logits, batch[2])


def make_plan(kind: str, transfer: Any, world_size: int) -> dict[str, TableSharding]:
    """Returns the sharding of all tables; `table_wise` distributes them as for TorchRec."""
    return {
        name: TableSharding(
            kind, (i * world_size // NUM_TABLES,) if kind == "table_wise" else (), transfer
        )
        for i, name in enumerate(NAMES)
    }


def _ours(weights: Weights, batches: list[Batch], container: StepContainer) -> Callable[[], float]:
    module = EmbeddingBagCollection(
        [
            EmbeddingBagConfig(name=name, embedding_dim=DIM, feature_names=[f"f{i}"])
            for i, name in enumerate(NAMES)
        ],
        container=container,
    )
    optimizer = Optimizer(module, "rowwise_adagrad", lr=LR, eps=EPS)
    rank, world_size = container.collective.rank, container.collective.world_size
    for name, weight in zip(NAMES, weights, strict=True):
        keys = np.arange(len(weight), dtype=np.int64)
        layout = container.state.tables.layout_of(name)
        order, offsets = _native.route(keys, layout.owners, world_size)
        mine = keys if layout.is_replicated else order[offsets[rank] : offsets[rank + 1]]
        mine = np.ascontiguousarray(mine)
        rows = np.zeros((len(mine), DIM + 1), np.float32)
        rows[:, :DIM] = weight[mine]
        container.storage(name).upsert(mine, rows)
    torch.manual_seed(0)
    dense = nn.parallel.DistributedDataParallel(Dense())
    features = [features_of(KeyedJaggedTensor, batch) for batch in batches]

    def loss_of(jagged: Any, batch: Batch) -> torch.Tensor:
        return _loss(dense(batch[1], module(jagged).values()), batch)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return _stepping(loss_of, features, batches, list(dense.parameters()), update)


def _dense_alone(batches: list[Batch]) -> Callable[[], float]:
    """A step with embeddings that take no time: an upper limit for all kinds of tables."""
    dense = nn.parallel.DistributedDataParallel(Dense())
    free = torch.randn(len(batches[0][1]), NUM_TABLES * DIM, requires_grad=True)

    def loss_of(_jagged: None, batch: Batch) -> torch.Tensor:
        return _loss(dense(batch[1], free), batch)

    return _stepping(
        loss_of, [None] * len(batches), batches, list(dense.parameters()), lambda: None
    )


def _theirs(weights: Weights, batches: list[Batch]) -> Callable[[], float]:
    import torchrec
    from torch.distributed.optim import _apply_optimizer_in_backward as fused_by
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import ShardingEnv, ShardingPlan

    world_size = dist.get_world_size()
    collection = torchrec.EmbeddingBagCollection(
        tables=[
            torchrec.EmbeddingBagConfig(
                name=name,
                embedding_dim=DIM,
                num_embeddings=len(weight),
                feature_names=[f"f{i}"],
            )
            for i, (name, weight) in enumerate(zip(NAMES, weights, strict=True))
        ],
        device=torch.device("cpu"),
    )
    fused_by(torchrec.optim.RowWiseAdagrad, collection.parameters(), {"lr": LR, "eps": EPS})
    sharder: Any = EmbeddingBagCollectionSharder()
    module_plan = construct_module_sharding_plan(
        collection,
        # Features are returned in the order of ranks, so this preserves their order.
        {name: table_wise(rank=i * world_size // NUM_TABLES) for i, name in enumerate(NAMES)},
        sharder,
        local_size=world_size,
        world_size=world_size,
        device_type="cpu",
    )
    torch.manual_seed(0)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = Dense()
            self.sparse = collection

        def forward(self, jagged: Any, batch: Batch) -> torch.Tensor:
            return _loss(self.dense(batch[1], self.sparse(jagged).values()), batch)

    assert dist.group.WORLD is not None
    model = DistributedModelParallel(
        Model(),
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        device=torch.device("cpu"),
        plan=ShardingPlan(plan={"sparse": module_plan}),
        sharders=[sharder],
    )
    for name, value in model.state_dict().items():
        if ".embedding_bags." not in f".{name}":
            continue
        weight = weights[NAMES.index(name.split(".")[-2])]
        for shard in value.local_shards():
            shard.tensor.detach().copy_(torch.from_numpy(weight))
    dense = [each for name, each in model.named_parameters() if "dense" in name]
    features = [features_of(torchrec.KeyedJaggedTensor, batch) for batch in batches]
    return _stepping(model, features, batches, dense, lambda: None)


if __name__ == "__main__":
    main()
