"""Modules whose tables' owners pool train like modules whose rows are sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparring import StepContainer
from sparring.contracts import Collective, TableSharding
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch.distributed.distributed_model_parallel import DistributedModelParallel
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.pipeline.train_pipeline import TrainPipeline

from .test_ranks import BATCH, batch_of_ranks

TABLES = ("first", "second", "third")


def opened(
    collective: Collective,
    transfer: Any = "pooled",
    tables: Sequence[str] = TABLES,
    first: Any = ("table_wise", (1,)),
) -> StepContainer:
    world_size = collective.world_size
    plan = {
        "first": TableSharding(*first, transfer=transfer),
        "second": TableSharding("row_wise", transfer=transfer),
        "third": TableSharding("table_wise", (0,)),
    }
    rendezvous = ThreadRendezvous(world_size)
    plan = {name: plan[name] for name in tables}
    return StepContainer(collective=collective, rendezvous=rendezvous, plan=plan)


def collection(**more: Any) -> EmbeddingBagCollection:
    mean = PoolingType.MEAN
    tables = [
        EmbeddingBagConfig(name="first", embedding_dim=4, feature_names=["a", "b"]),
        EmbeddingBagConfig(name="second", embedding_dim=3, feature_names=["c"], pooling=mean),
        EmbeddingBagConfig(name="third", embedding_dim=2, feature_names=["a"]),
    ]
    return EmbeddingBagCollection(tables=tables, **more)


class Model(nn.Module):
    def __init__(self, bags: EmbeddingBagCollection) -> None:
        super().__init__()
        self.bags = bags
        self.dense = nn.Linear(13, 1)
        for each in self.dense.parameters():
            nn.init.constant_(each, 0.25)  # no random numbers: threads of ranks share their state

    def forward(self, features: KeyedJaggedTensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = self.dense(self.bags(features).values()).squeeze(1)
        return ((output - torch.arange(BATCH) / BATCH) ** 2).mean(), output.detach()


def trained(
    collective: Collective, transfer: str, work: Callable[[Any], None], **more: Any
) -> dict[str, Any]:
    """Returns this rank's rows after working on a model; with column sharding, the rows of each block."""
    with opened(collective, transfer, **more) as container:
        model = DistributedModelParallel(Model(collection()), container=container)
        work(model)
        return {
            f"{part.config.name} {key}": row.copy()
            for name in container.tables
            for part in container.entry(name).parts
            if part.storage is not None
            for chunk in part.storage.scan()
            for key, row in zip(chunk.keys.tolist(), chunk.rows, strict=True)
        }


def compare(world_size: int, work: Callable[[Any], None], **more: Any) -> None:
    """Both transfers give the same rows."""
    rows: list[dict[str, Any]] = []
    for transfer in ("rows", "pooled"):

        def body(collective: Collective, transfer: str = transfer) -> dict[str, Any]:
            return trained(collective, transfer, work, **more)

        held = run_ranks(world_size, body)
        rows.append({key: row for each in held for key, row in each.items()})
    assert rows[0].keys() == rows[1].keys()
    assert len(rows[0]) > 60
    for key, row in rows[0].items():
        np.testing.assert_allclose(rows[1][key], row, rtol=1e-6, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(
    ("world_size", "optimizer", "options", "first"),
    [
        pytest.param(2, torch.optim.SGD, {}, ("table_wise", (1,)), marks=pytest.mark.slow),
        pytest.param(
            2,
            torch.optim.Adagrad,
            {"update": "shadow"},
            ("table_wise", (0,)),
            marks=pytest.mark.slow,
        ),
        (3, "adagrad", {}, ("table_row_wise", (0, 2))),
        pytest.param(2, "adagrad", {}, ("column_wise", (0, 1)), marks=pytest.mark.slow),
        (2, torch.optim.Adagrad, {"update": "shadow"}, ("column_wise", (1, 0))),
    ],
)
def test_collections_train_as_by_rows(
    world_size: int, optimizer: Any, options: Any, first: Any
) -> None:
    def work(model: Any) -> None:
        updates = Optimizer(model, optimizer, lr=0.05, **options)
        dense = torch.optim.SGD(model.parameters(), lr=0.05)
        rank = model.container.collective.rank
        for step in range(10):
            for micro in range(2):
                model(batch_of_ranks(2 * step + micro, [rank]))[0].backward()
            if step % 5 == 4:
                updates.zero_grad()  # this step does not happen
            updates.step()
            updates.zero_grad()
            dense.step()
            dense.zero_grad()
            with torch.no_grad():
                model(batch_of_ranks(step, [rank]))
        assert model.container.exchange.pooling.num_kept == 0

    compare(world_size, work, first=first)


def test_norms_clip_as_by_rows() -> None:
    def work(model: Any) -> None:
        updates = Optimizer(model, torch.optim.SGD, lr=0.5)
        rank = model.container.collective.rank
        for step in range(6):
            model(batch_of_ranks(step, [rank]))[0].backward()
            torch.nn.utils.clip_grad_norm_(model.module.bags.parameters(), 0.01)
            model(batch_of_ranks(step + 50, [rank]))[0].backward()  # a micro-batch after the sum
            updates.step()
            updates.zero_grad()

    compare(2, work)


def test_a_pipeline_trains_as_by_rows_and_prefetches_no_pools() -> None:
    def work(model: Any) -> None:
        updates = Optimizer(model, torch.optim.SGD, lr=0.05)
        rank = model.container.collective.rank
        pipeline = TrainPipeline(model, updates, torch.device("cpu"))
        batches = iter([batch_of_ranks(step, [rank]) for step in range(8)])
        for _ in range(8):
            pipeline.progress(batches)
        is_pooled = "pooled" in str(model.container.layout("first"))
        assert (model.container.prefetches.counters.lookups == 0) == is_pooled

    compare(2, work)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_train_as_by_rows(backend: str) -> None:
    def work(model: Any) -> None:
        updates = Optimizer(model, torch.optim.SGD, lr=0.05)
        rank = model.container.collective.rank
        bags = model.module.bags
        for step in range(6):
            features = batch_of_ranks(step, [rank])
            ids, lengths = features.values(), features.lengths()
            positions = bags._router.op_positions(features)
            pools = torch.ops.sparring.pooled_lookup(
                ids, lengths, None, *bags.op_arguments(), positions, BATCH, 13
            )
            ((pools - (0.5 if backend == "eager" else 0.25)) ** 2).mean().backward()
            updates.step()
            updates.zero_grad()

    compare(2, work)


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_embedding_bags_and_gradients_of_weights_equal_torch(mode: str) -> None:
    ids = torch.tensor([3, -5, 3, 8, 9, 3, 7])
    offsets = torch.tensor([0, 3, 3, 6])

    def body(collective: Collective) -> None:
        with opened(collective, tables=["second"]) as container:
            bags = EmbeddingBag(4, mode=mode, padding_idx=8, name="second", container=container)
            updates = Optimizer(bags, torch.optim.SGD, lr=0.5)
            matrix = bags.read_embeddings(torch.arange(-10, 10)).requires_grad_()
            before = matrix.detach().clone()
            weights = torch.linspace(-1, 1, 7).requires_grad_() if mode == "sum" else None
            theirs = None if weights is None else weights.detach().clone().requires_grad_()
            found = bags(ids, offsets, weights)
            expected = nn.functional.embedding_bag(
                ids + 10, matrix, offsets, mode=mode, per_sample_weights=theirs, padding_idx=18
            )
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
            slope = torch.arange(16.0).reshape(4, 4)
            (found * slope).sum().backward()
            (expected * slope).sum().backward()
            if weights is not None and theirs is not None:
                assert weights.grad is not None
                assert theirs.grad is not None
                torch.testing.assert_close(weights.grad, theirs.grad, rtol=0, atol=1e-6)
            updates.step()
            updates.zero_grad()
            assert matrix.grad is not None
            after = bags.read_embeddings(torch.arange(-10, 10))
            torch.testing.assert_close(after, before - 0.5 * matrix.grad, rtol=0, atol=1e-5)

    run_ranks(2, body)


def test_weighted_collections_train_weights_as_by_rows() -> None:
    def body(collective: Collective, transfer: str) -> list[Any]:
        with opened(collective, transfer) as container:
            bags = collection(is_weighted=True, container=container)
            updates = Optimizer(bags, torch.optim.SGD, lr=0.5)
            seen = []
            for step in range(5):
                features = batch_of_ranks(step, [collective.rank], weights=True)
                features.weights().requires_grad_()
                (bags(features).values() ** 2).sum().backward()
                assert features.weights().grad is not None
                seen.append(features.weights().grad.numpy())
                updates.step()
                updates.zero_grad()
            return seen

    by_rows = run_ranks(2, lambda collective: body(collective, "rows"))
    pooled = run_ranks(2, lambda collective: body(collective, "pooled"))
    for mine, theirs in zip(pooled, by_rows, strict=True):
        for each, other in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(each, other, rtol=1e-5, atol=1e-5)


def test_sequences_of_a_pooled_table_are_sent_by_rows_and_reported(caplog: Any) -> None:
    caplog.set_level("INFO", logger="sparring")

    def body(collective: Collective) -> None:
        with opened(collective) as container:
            config = EmbeddingConfig(name="first", embedding_dim=4, feature_names=["a"])
            sequences = EmbeddingCollection([config], container=container, shared=True)
            bags = collection(container=container)
            updates = Optimizer([sequences, bags], torch.optim.SGD, lr=1.0)
            ids = torch.tensor([5, 5, 6])
            features = KeyedJaggedTensor(["a", "b", "c"], ids, lengths=torch.tensor([1, 2, 0]))
            before = bags.read_embeddings(ids, "first")
            one = KeyedJaggedTensor(["a"], ids[:1], lengths=torch.tensor([1]))
            loss = sequences(one)["a"].values().sum()
            (loss + bags(features)["a@first"].sum() + bags(features)["b"].sum()).backward()
            updates.step()
            updates.zero_grad()
            after = bags.read_embeddings(ids, "first")
            # Id 5: a row of a sequence, a bag of `a`, a bag of `b`; id 6: a bag of `b`.
            times = torch.tensor([3.0, 3.0, 1.0])[:, None]
            torch.testing.assert_close(before - after, times.expand(3, 4), rtol=0, atol=1e-5)

    run_ranks(2, body)
    told = [each.getMessage() for each in caplog.records if "by rows" in each.getMessage()]
    assert any("'first'" in each for each in told)


def test_a_batch_that_one_rank_rejects_is_rejected_on_all() -> None:
    def body(collective: Collective) -> None:
        with opened(collective) as container:
            bags = collection(container=container)
            Optimizer(bags, torch.optim.SGD, lr=1.0)
            features = batch_of_ranks(1, [collective.rank])
            if collective.rank:
                features = KeyedJaggedTensor(["a"], torch.tensor([1]), lengths=torch.tensor([1]))
            with pytest.raises(InvalidArgumentError, match="b"):
                bags(features)
            bags(batch_of_ranks(2, [collective.rank]))

    run_ranks(2, body)
