"""If a module rejects a batch on one rank before its lookup, all ranks raise and can continue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparring import ExchangeOptions, StepContainer
from sparring.errors import InvalidArgumentError
from sparring_testing.devices import why_unavailable
from sparring_testing.processes.rank_threads import run_containers
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, EmbeddingConfig
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.pipeline.train_pipeline import TrainPipeline

SOON, LONG = 20.0, 60.0
"""Seconds: maximum time until ranks raise, and the time that they would wait without a report."""

IDS = torch.arange(20).reshape(5, 4)
NARROWED = ExchangeOptions(row_wire_dtype="float16")


def jagged(name: str = "film", ids: Tensor = IDS) -> KeyedJaggedTensor:
    values = ids.reshape(-1)
    return KeyedJaggedTensor.from_lengths_sync([name], values, torch.full((len(values),), 1))


def bags(container: StepContainer, **storage: Any) -> nn.Module:
    tables = [EmbeddingBagConfig(name="films", embedding_dim=4, feature_names=["film"], **storage)]
    return EmbeddingBagCollection(tables=tables, container=container)


def embeddings(container: StepContainer, **storage: Any) -> nn.Module:
    tables = [EmbeddingConfig(name="films", embedding_dim=4, feature_names=["film"], **storage)]
    return EmbeddingCollection(tables=tables, container=container)


def bag(container: StepContainer, **storage: Any) -> nn.Module:
    return EmbeddingBag(4, name="films", container=container, **storage)


def embedding(container: StepContainer, **storage: Any) -> nn.Module:
    return Embedding(4, name="films", container=container, **storage)


CASES = [
    pytest.param(bag, IDS, IDS + 0.5, id="bag of fractions"),
    pytest.param(bag, IDS, IDS.reshape(-1), id="bag without offsets"),
    pytest.param(embedding, IDS, IDS + 0.5, id="embedding of fractions"),
    pytest.param(bags, jagged(), jagged("movie"), id="bags of another feature"),
    pytest.param(bags, jagged(), jagged(ids=IDS + 0.5), id="bags of fractions"),
    pytest.param(embeddings, jagged(), jagged("movie"), id="embeddings of another feature"),
    pytest.param(embeddings, jagged(), jagged(ids=IDS + 0.5), id="embeddings of fractions"),
]
PLACES = [
    pytest.param({}, None, id="cpu"),
    pytest.param({"backend": "hkv", "device": "emulated"}, None, id="device"),
    pytest.param({"backend": "hkv", "device": "emulated"}, NARROWED, id="device by the host"),
]


@pytest.mark.parametrize("is_training", [True, False], ids=["training", "reading"])
@pytest.mark.parametrize(("storage", "exchange"), PLACES)
@pytest.mark.parametrize(("make", "good", "bad"), CASES)
def test_a_batch_that_one_rank_rejects_raises_on_all_and_training_continues(
    make: Callable[..., nn.Module],
    good: Any,
    bad: Any,
    storage: dict[str, Any],
    exchange: ExchangeOptions | None,
    is_training: bool,
) -> None:
    if storage and (reason := why_unavailable("emulated")):
        pytest.skip(reason)
    raised = threading.Barrier(2)

    def body(container: StepContainer) -> InvalidArgumentError:
        rank = container.collective.rank
        module = make(container, **({"storage": storage} if storage else {})).train(is_training)
        begin = time.monotonic()
        with pytest.raises(InvalidArgumentError) as caught:
            module(bad if rank == 1 else good)
        assert time.monotonic() - begin < SOON
        raised.wait(LONG)  # because the end of this rank would also notify the other
        module(good)
        raised.wait(LONG)
        return caught.value

    told, refused = run_containers(2, body, LONG, exchange=exchange)
    assert told.details["rank"] == 1
    assert str(refused) in str(told)


def test_ids_on_another_device_than_rows_on_the_host_route_are_rejected_by_all() -> None:
    if reason := why_unavailable("emulated"):
        pytest.skip(reason)
    raised = threading.Barrier(2)

    def body(container: StepContainer) -> InvalidArgumentError:
        module = bag(container, device="emulated")
        bad = torch.empty((5, 4), dtype=torch.int64, device="meta")
        with pytest.raises(InvalidArgumentError) as caught:
            module(bad if container.collective.rank == 1 else IDS)
        raised.wait(LONG)
        module(IDS)
        return caught.value

    told, refused = run_containers(2, body, LONG, exchange=NARROWED)
    assert told.details["rank"] == 1
    assert "the ids are on meta" in str(refused)


class Model(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        found = self.table(ids)
        return found.sum(), found.detach()


def test_a_prefetched_batch_that_one_rank_rejects_raises_on_all_and_training_continues() -> None:
    raised = threading.Barrier(2)

    def body(container: StepContainer) -> list[str]:
        model = Model(bag(container))
        pipeline = TrainPipeline(model, Optimizer(model, "sgd", lr=0.1))
        bad = IDS + 0.5 if container.collective.rank == 1 else IDS
        given = iter([IDS, IDS, bad, IDS, IDS])
        pipeline.progress(given)
        begin, errors = time.monotonic(), []
        for _ in range(2):  # the step that waits for the batch, and the next step
            with pytest.raises(InvalidArgumentError) as caught:
                pipeline.progress(given)
            errors.append(str(caught.value))
        assert time.monotonic() - begin < SOON
        raised.wait(LONG)
        pipeline.progress(given)
        pipeline.progress(given)
        with pytest.raises(StopIteration):
            pipeline.progress(given)
        assert container.counters.steps == 3
        raised.wait(LONG)
        return errors

    told, refused = run_containers(2, body, LONG)
    assert refused[0] == refused[1]
    for each in told:
        assert "rank 1 cannot look up its rows" in each
        assert each.endswith(refused[0])
