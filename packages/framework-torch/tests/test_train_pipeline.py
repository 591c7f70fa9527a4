"""`TrainPipeline` is bit-identical to the plain loop."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparring import StepContainer
from sparring.adapter import MemoryStorage
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, PeerFailure
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import read_tables
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.pipeline.train_pipeline import TrainPipeline

NUM_BATCHES = 9
BATCH = 5


@dataclass
class Batch:
    features: KeyedJaggedTensor
    extra: dict[str, Any]
    fails: bool = False

    def to(self, device: torch.device) -> Batch:
        return Batch(self.features.to(device), self.extra, self.fails)


def batches(rank: int, **fails: int) -> Iterator[Batch]:
    """Returns batches of few ids, so that successive ones share most of them."""
    for step in range(NUM_BATCHES):
        random = np.random.default_rng((step, rank))
        lengths = random.integers(0, 4, (3, BATCH))
        if (step + rank) % 4 == 3:
            lengths[:] = 0
        ids = random.integers(-12, 12, int(lengths.sum())) + step
        features = KeyedJaggedTensor.from_lengths_sync(
            keys=["a", "b", "c"],
            values=torch.from_numpy(ids),
            lengths=torch.from_numpy(lengths.reshape(-1)),
            weights=torch.linspace(0, 1, len(ids)),
        )
        pair = [torch.from_numpy(random.integers(0, 9, (BATCH, 2))), torch.zeros(1)]
        yield Batch(features, {"pair": pair}, fails.get("fails_at") == step)


class Model(nn.Module):
    """A model with all kinds of lookups; one uses ids that it computes."""

    def __init__(self, container: StepContainer | None) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            [
                EmbeddingBagConfig(name="first", embedding_dim=4, feature_names=["a", "b"]),
                EmbeddingBagConfig(
                    name="second",
                    embedding_dim=3,
                    feature_names=["c"],
                    pooling=PoolingType.MEAN,
                    data_type=DataType.BF16,
                ),
            ],
            is_weighted=True,
            container=container,
        )
        self.sequences = EmbeddingCollection(
            [EmbeddingConfig(name="third", embedding_dim=4, feature_names=["a", "b", "c"])],
            container=container,
        )
        self.pair = Embedding(2, padding_idx=3, name="fourth", container=container)
        self.computed = Embedding(2, name="fifth", container=container)
        self.dense = nn.Linear(4 + 4 + 3 + 4 + 4 + 2, 1)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        pair = batch.extra["pair"][0]
        if batch.fails:
            raise RuntimeError("the model cannot do this batch")
        bags = self.bags(batch.features).values()
        sequence = self.sequences(batch.features)["c"].values().sum(0).expand(BATCH, -1)
        computed = self.computed(pair[:, 0] + 1)
        joined = torch.cat([bags, sequence, self.pair(pair).reshape(BATCH, 4), computed], 1)
        output = torch.tanh(self.dense(joined)).squeeze(1)
        return ((output - 1) ** 2).mean(), output.detach()


OPTIMIZERS = {
    "native adam": torch.optim.Adam,
    "fused adam": "adam",
    "rowwise_adagrad": "rowwise_adagrad",
}


@dataclass
class Result:
    rows: dict[str, dict[int, bytes]]
    outputs: list[bytes]
    dense: bytes
    refreshed: int
    looked_up: int


Loop = Callable[["Model", list[Any], Iterator[Batch], int], list[Tensor]]


def plain(model: Model, optimizers: list[Any], given: Iterator[Batch], micro: int) -> list[Tensor]:
    outputs = []
    all_batches = list(given)
    accumulated = 0
    for number, batch in enumerate(all_batches):
        if number % 4 == 3:
            outputs.append(evaluate(model))
        if accumulated == 0:
            for each in optimizers:
                each.zero_grad()
        try:
            loss, output = model(batch)
        except RuntimeError:
            accumulated = 0
            continue
        loss.backward()
        outputs.append(output)
        accumulated += 1
        if accumulated == micro or number == len(all_batches) - 1:
            accumulated = 0
            for each in optimizers:
                each.step()
                each.zero_grad()
    return outputs


def pipelined(
    model: Model, optimizers: list[Any], given: Iterator[Batch], micro: int
) -> list[Tensor]:
    pipeline: TrainPipeline[Batch, Tensor] = TrainPipeline(
        model, optimizers, torch.device("cpu"), micro_batches=micro
    )
    outputs = []
    number = 0
    while True:
        if number % 4 == 3 and number < NUM_BATCHES:
            outputs.append(evaluate(model))
        number += 1
        try:
            outputs.append(pipeline.progress(given))
        except StopIteration:
            break
        except RuntimeError:
            continue
    assert pipeline.pipelined == ["bags", "sequences", "pair"]
    with pytest.raises(StopIteration):
        pipeline.progress(given)
    return outputs


def evaluate(model: Model) -> Tensor:
    model.eval()
    with torch.no_grad():
        _, output = model(next(batches(17)))
    model.train()
    return output


def run(loop: Loop, optimizer: Any, micro: int, container: StepContainer, **fails: int) -> Result:
    torch.manual_seed(0)
    model = Model(container)
    for parameter in model.dense.parameters():
        nn.init.constant_(parameter, 0.1)
    optimizers = [
        Optimizer(model, optimizer, lr=0.05),
        torch.optim.SGD(model.parameters(), lr=0.1),
    ]
    outputs = loop(model, optimizers, batches(container.collective.rank, **fails), micro)
    return Result(
        read_tables(container),
        [each.numpy().tobytes() for each in outputs],
        model.dense.weight.detach().numpy().tobytes(),
        container.prefetches.counters.rows_refreshed,
        container.prefetches.counters.rows,
    )


@pytest.mark.parametrize(
    ("world_size", "optimizer", "micro"),
    [
        pytest.param(
            world_size,
            optimizer,
            micro,
            # Every number of ranks with each number of micro-batches, and every optimizer twice.
            marks=pytest.mark.long
            if (world_size + micro + number) % 3
            else pytest.mark.slow
            if number % 2
            else [],
        )
        for world_size in (1, 2, 3)
        for number, optimizer in enumerate(OPTIMIZERS)
        for micro in (1, 2)
    ],
)
def test_results_equal_the_plain_loop(world_size: int, optimizer: str, micro: int) -> None:
    chosen = OPTIMIZERS[optimizer]
    for one, other in zip(
        run_containers(world_size, partial(run, plain, chosen, micro)),
        run_containers(world_size, partial(run, pipelined, chosen, micro)),
        strict=True,
    ):
        assert one.outputs == other.outputs
        assert one.rows == other.rows
        assert one.dense == other.dense
        assert one.looked_up == 0
        assert 0 < other.refreshed < other.looked_up


@pytest.mark.parametrize(("world_size", "fails_at"), [(2, 0), (1, 3), (2, 3), (2, NUM_BATCHES - 1)])
def test_a_batch_that_fails_in_the_model_is_the_only_one_lost(
    world_size: int, fails_at: int
) -> None:
    for one, other in zip(
        run_containers(world_size, partial(run, plain, "adam", 1, fails_at=fails_at)),
        run_containers(world_size, partial(run, pipelined, "adam", 1, fails_at=fails_at)),
        strict=True,
    ):
        assert one.outputs == other.outputs
        assert one.rows == other.rows


class Changing(nn.Module):
    """A model that changes a batch before it looks up its bags."""

    def __init__(self, change: Callable[[KeyedJaggedTensor], object]) -> None:
        super().__init__()
        config = EmbeddingBagConfig(name="changing", embedding_dim=2, feature_names=["a"])
        self.bags = EmbeddingBagCollection([config], is_weighted=True)
        self.change = change

    def forward(self, features: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
        self.change(features)
        output = self.bags(features).values()
        return output.sum(), output.detach()


@pytest.mark.parametrize(
    "change",
    [
        lambda features: features.weights().mul_(3),
        lambda features: features.values().remainder_(2),
    ],
    ids=["weights", "ids"],
)
def test_weights_and_ids_that_the_model_changes_are_used(
    change: Callable[[KeyedJaggedTensor], object],
) -> None:
    def batch() -> KeyedJaggedTensor:
        weights = torch.tensor([1, 2, 3], dtype=torch.float64)  # converted, so they are copied
        return KeyedJaggedTensor(["a"], torch.tensor([4, 4, 5]), weights, torch.tensor([2, 1]))

    model = Changing(change)
    pipeline: TrainPipeline[Any, Tensor] = TrainPipeline(model, Optimizer(model, "sgd", lr=0))
    given = iter([batch() for _ in range(3)])
    first, *others = [pipeline.progress(given) for _ in range(3)]
    assert pipeline.pipelined == ["bags"]
    assert model.bags.agent.container.prefetches.counters.lookups == 2
    assert all(torch.equal(first, other) for other in others)


class Small(nn.Module):
    def __init__(self, container: StepContainer | None = None) -> None:
        super().__init__()
        self.table = Embedding(2, name="small", container=container)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        embeddings = self.table(ids)
        return embeddings.sum(), embeddings.detach()


def small(
    container: StepContainer | None = None, **options: Any
) -> tuple[Small, TrainPipeline[Tensor, Tensor]]:
    model = Small(container)
    updates = Optimizer(model, torch.optim.SGD, lr=1)
    return model, TrainPipeline(model, updates, **options)


def test_the_next_batch_is_looked_up_while_this_one_is_computed() -> None:
    model, pipeline = small()
    given = iter([torch.arange(3), torch.arange(2, 5)])
    pipeline.progress(given)
    # One step later, only the key that both share is read again.
    second = pipeline.progress(given)
    counters = model.table.agent.container.prefetches.counters
    assert (counters.lookups, counters.rows, counters.rows_refreshed) == (1, 3, 1)
    assert second.shape == (3, 2)


def test_an_invalid_batch_is_rejected_in_its_turn() -> None:
    _, pipeline = small()
    given = iter([torch.arange(3), torch.arange(3), torch.tensor([0.5]), torch.arange(3)])
    pipeline.progress(given)
    pipeline.progress(given)
    with pytest.raises(InvalidArgumentError):
        pipeline.progress(given)
    pipeline.progress(given)
    with pytest.raises(StopIteration):
        pipeline.progress(given)


def test_an_error_of_the_loader_comes_after_the_batches_before_it() -> None:
    def given() -> Iterator[Tensor]:
        yield torch.arange(3)
        yield torch.arange(4)
        raise OSError("the disk is gone")

    model, pipeline = small()
    loader = given()
    pipeline.progress(loader)
    pipeline.progress(loader)
    assert model.table.num_rows() == {"small": 4}
    with pytest.raises(OSError, match="the disk is gone"):
        pipeline.progress(loader)
    with pytest.raises(StopIteration):
        pipeline.progress(loader)


def test_the_last_batch_may_be_left_unfinished() -> None:
    model, pipeline = small(execute_all_batches=False)
    given = iter([torch.tensor([1]), torch.tensor([2]), torch.tensor([3])])
    pipeline.progress(given)
    pipeline.progress(given)
    with pytest.raises(StopIteration):
        pipeline.progress(given)
    assert model.table.num_rows() == {"small": 2}
    assert not model.table.agent.container.prefetches.unfinished


def test_evaluation_mode_only_calls_the_model() -> None:
    model, pipeline = small()
    given = iter([torch.tensor([each]) for each in range(4)])
    pipeline.progress(given)
    model.eval()
    pipeline.progress(given)
    model.train()
    pipeline.progress(given)
    assert model.table.num_rows() == {"small": 2}


@pytest.mark.parametrize("is_weak", [True, False])
def test_a_shortened_evaluation_neither_loses_nor_trains_batches(is_weak: bool) -> None:
    def iterate(ids: range) -> Iterator[Tensor]:
        found = [torch.tensor([each]) for each in ids]
        return (each for each in found) if is_weak else iter(found)

    model, pipeline = small()
    training, seen = iterate(range(6)), []
    for step in range(6):
        pipeline.progress(training)
        model.eval()
        evaluation = iterate(range(100 * (step + 1), 100 * (step + 1) + 9))
        for _ in range(2):  # of 9 batches
            output = pipeline.progress(evaluation)
            seen.append(output.shape)
        model.train()
    with pytest.raises(StopIteration):
        pipeline.progress(training)
    assert model.table.num_rows() == {"small": 6}
    assert float(model.table.read_embeddings(torch.arange(6)).abs().max()) > 0
    assert len(seen) == 12


def test_iterators_that_alternate_in_training_keep_their_batches() -> None:
    model, pipeline = small()
    pair = [iter([torch.tensor([10 * each + k]) for k in range(3)]) for each in range(2)]
    for _ in range(3):
        for each in pair:
            pipeline.progress(each)
    for each in pair:
        with pytest.raises(StopIteration):
            pipeline.progress(each)
    assert model.table.num_rows() == {"small": 6}


def test_a_dropped_batch_of_an_iterator_is_reported() -> None:
    _, pipeline = small()
    iterators = [iter([torch.tensor([each]), torch.tensor([-each])]) for each in range(1, 11)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in iterators[:9]:
            pipeline.progress(each)
    with pytest.warns(UserWarning, match="more than 8 unfinished iterators") as found:
        pipeline.progress(iterators[9])
    assert found[0].filename == __file__


@pytest.mark.filterwarnings("ignore:TrainPipeline. found more than 8 unfinished iterators")
def test_abandoned_iterators_are_released() -> None:
    model, pipeline = small()
    for epoch in range(30):
        batches = [torch.tensor([epoch, each]) for each in range(5)]
        pipeline.progress(iter(batches) if epoch % 2 else (each for each in batches))
    pipeline.progress(each for each in batches)
    assert len(pipeline._elsewhere._kept) <= 9
    pipeline.drop_pending()
    assert not pipeline._elsewhere._kept
    assert model.table.num_rows()["small"] == 30


def test_a_lost_rank_is_named_with_the_step_by_progress() -> None:
    def body(container: StepContainer) -> BaseException | None:
        _, pipeline = small(container)
        given = iter([torch.arange(6)] * 5)
        pipeline.progress(given)
        if container.collective.rank == 1:
            return None
        with pytest.raises(PeerFailure) as caught:
            list(iter(lambda: pipeline.progress(given), None))
        return caught.value

    found, _ = run_containers(2, body, 10.0)
    assert isinstance(found, PeerFailure)
    assert found.details["rank"] == 1
    assert found.details["step"] == 1
    assert found.details["steps_applied"] == 1


class WaitingStorage(MemoryStorage):
    """Finds rows for the third batch only after the model starts to compute the second."""

    def __init__(self, table: TableConfig) -> None:
        super().__init__(table)
        self.is_computing = threading.Event()
        self.num_prefetched = 0
        self.has_waited = False

    def _find_impl(self, *arguments: Any) -> None:
        if threading.current_thread().name.startswith("sparring-prefetch"):
            self.num_prefetched += 1
            if self.num_prefetched == 2:
                self.has_waited = self.is_computing.wait(10)
        super()._find_impl(*arguments)


@pytest.mark.parametrize("native", [torch.optim.SGD, "sgd"])
def test_the_dense_part_runs_while_rows_are_found(native: Any) -> None:
    class Computing(Small):
        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            found = super().forward(ids)
            if storage.num_prefetched:
                storage.is_computing.set()
            return found

    storage = WaitingStorage(TableConfig("waiting", 2))
    model = Computing()
    model.table = Embedding(2, name="waiting", storage=storage)
    pipeline: TrainPipeline[Tensor, Tensor] = TrainPipeline(model, Optimizer(model, native, lr=1))
    given = iter([torch.arange(each, each + 3) for each in range(4)])
    for _ in range(4):
        pipeline.progress(given)
    assert storage.has_waited
