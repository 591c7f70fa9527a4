"""Compiled and exported models look up and train like the original models."""

from __future__ import annotations

import copy
import gc
import io
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sparring import LocalGroup, StepContainer
from sparring.contracts import Collective
from sparring.errors import InvalidArgumentError
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch import (
    DistributedModelParallel,
    Embedding,
    EmbeddingBag,
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    Optimizer,
)
from sparring_torch.device import path as device_path
from sparring_torch.lookup import host_path
from sparring_torch.lookup.batch_lookup import DirectBatch

BATCHES = [torch.arange(2 * size).view(size, 2) % 5 for size in (3, 4, 2)]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class Model(nn.Module):
    """Looks up the same ids twice in each table."""

    def __init__(self, *, is_checkpointed: bool = False, device: str | None = None) -> None:
        super().__init__()
        where: dict[str, Any] = {"storage": "memory"} if device is None else {"device": device}
        self.users = Embedding(4, name="users", padding_idx=3, **where)
        self.items = EmbeddingBag(4, name="items", mode="sum", padding_idx=2, **where)
        self.weights = nn.Parameter(torch.ones(2))
        self.dense = nn.Linear(4, 1)
        nn.init.constant_(self.dense.weight, 0.5)
        nn.init.zeros_(self.dense.bias)
        self.is_checkpointed = is_checkpointed

    def logits(self, ids: Tensor) -> Tensor:
        users = self.users(ids[:, 0]) + self.users(ids[:, 0])
        weights = self.weights.expand(len(ids), 2)
        items = self.items(ids, None, weights) + self.items(ids)
        found: Tensor = self.dense(torch.sin(users * items + users))
        return found

    def forward(self, ids: Tensor) -> Tensor:
        if self.is_checkpointed:
            return checkpoint(self.logits, ids, use_reentrant=False).square().mean()
        return self.logits(ids).square().mean()


def trained(model: nn.Module, backend: str | None, batches: list[Tensor]) -> list[Tensor]:
    """Returns losses of some steps, dense weights, and rows."""
    optimizers = [
        Optimizer(model, torch.optim.Adagrad, lr=0.1),
        torch.optim.SGD(model.parameters(), lr=0.1),
    ]
    call: Any = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
    found = []
    for batch in batches:
        loss = call(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        for each in optimizers:
            each.step()
            each.zero_grad()
        found.append(loss.detach())
    inner: Any = model.module if isinstance(model, DistributedModelParallel) else model
    with torch.no_grad():
        rows = [inner.users(torch.arange(5)), inner.items(torch.arange(5)[:, None])]
    return [*found, inner.dense.weight.detach(), inner.weights.detach(), *rows]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_a_compiled_model_trains_bit_for_bit(is_checkpointed: bool) -> None:
    def make() -> Model:
        return Model(is_checkpointed=is_checkpointed)

    batches = BATCHES[:1] if is_checkpointed else BATCHES
    expected = trained(make(), None, batches)
    assert same_bits(trained(make(), "aot_eager", batches), expected)


@pytest.mark.slow
def test_tables_on_a_device_train_compiled() -> None:
    expected = trained(Model(device="emulated"), None, BATCHES[:2])
    assert same_bits(trained(Model(device="emulated"), "aot_eager", BATCHES[:2]), expected)


@pytest.mark.slow
def test_inductor_compiles_lookups() -> None:
    found = []
    for is_compiled in (False, True):
        bags = EmbeddingBag(4, name="bags", mode="sum", storage="memory")
        optimizer = Optimizer(bags, torch.optim.Adagrad, lr=0.5)
        call: Any = torch.compile(bags, fullgraph=True) if is_compiled else bags
        for ids in BATCHES[:1] * 2:
            call(ids).relu().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        found.append([bags.eval()(BATCHES[0])])
    assert same_bits(*found)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", [DirectBatch, device_path._Batch, host_path._GradientHook])
def test_prefetched_batches_that_are_never_used_are_dropped_silently(kind: type[Any]) -> None:
    del [kind.__new__(kind)][0]
    gc.collect()


@pytest.mark.slow
def test_models_with_tables_of_one_name_are_distinguished() -> None:
    first, second = Model(), Model()
    both = [first, copy.deepcopy(first), second]
    compiled = [torch.compile(each, backend="aot_eager", fullgraph=True) for each in both]
    optimizer = Optimizer(second, torch.optim.SGD, lr=1.0)
    for call in compiled:
        call(BATCHES[0])
    compiled[-1](BATCHES[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert not torch.equal(compiled[-1](BATCHES[0]), second.eval()(BATCHES[1]))
    assert [each.users.num_rows()["users"] for each in both] == [0, 0, 3]
    unpickled = pickle.loads(pickle.dumps(first))
    assert len({each.users.op_name for each in [*both, unpickled]}) == 4


def test_a_compiled_model_can_be_frozen_and_evaluated() -> None:
    model = Model()
    optimizer = Optimizer(model, torch.optim.SGD, lr=1.0)
    call: Any = torch.compile(model.users, backend="aot_eager", fullgraph=True)
    ids = torch.tensor([1, 7])
    call(ids).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    trained_rows = model.users(ids).detach()
    model.users.requires_grad_(False)
    assert not call(ids).requires_grad
    model.users.requires_grad_(True).eval()
    assert torch.equal(call(ids), trained_rows)
    with torch.no_grad():
        assert torch.equal(call(ids), trained_rows)
    assert optimizer.container.resources.num_batch_inputs == 0


@pytest.mark.slow
def test_ranks_recompile_for_other_sizes_of_their_batches() -> None:
    def body(collective: Collective, backend: str | None) -> list[Tensor]:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            model = DistributedModelParallel(Model(), container=container)
            mine = [batch[collective.rank :] for batch in BATCHES[:2]]
            return trained(model, backend, mine)

    found = []
    for backend in (None, "aot_eager"):
        group = LocalGroup(2, deadline_seconds=60)
        with ThreadPoolExecutor(2) as threads:
            futures = [threads.submit(body, group.join(rank), backend) for rank in range(2)]
            found.append([each.result() for each in futures])
    for eager, compiled in zip(*found, strict=True):
        assert same_bits(eager, compiled)


class Collection(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        tables = [
            EmbeddingBagConfig(name="a", embedding_dim=2, feature_names=["x", "y"]),
            EmbeddingBagConfig(name="b", embedding_dim=4, feature_names=["x"]),
        ]
        self.bags = EmbeddingBagCollection(tables, storage="memory", is_weighted=True)
        self.dense = nn.Linear(8, 1)

    def forward(self, batch: KeyedJaggedTensor) -> Tensor:
        keyed = self.bags(batch)
        found: Tensor = self.dense(keyed.values()) * keyed["y"].sum()
        return found


def test_bags_that_examples_share_are_looked_up_without_graph_breaks() -> None:
    bags = EmbeddingBagCollection(
        [EmbeddingBagConfig(name=name, embedding_dim=4) for name in ("user", "item")],
        storage="memory",
    ).eval()
    batch = KeyedJaggedTensor(
        ["item", "user"],
        torch.tensor([11, 12, 13, 14, 1, 2, 3]),
        lengths=torch.tensor([1, 1, 1, 1, 2, 1]),
        stride_per_key_per_rank=[[4], [2]],
        inverse_indices=(["item", "user"], torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])),
    )
    compiled = torch.compile(lambda each: bags(each).values(), backend="eager", fullgraph=True)
    assert torch.equal(compiled(batch), bags(batch).values())


def batch_of(size: int, weights: Tensor) -> KeyedJaggedTensor:
    lengths = torch.arange(2 * size) % 3
    count = int(lengths.sum())
    return KeyedJaggedTensor(["y", "x"], torch.arange(count) % 4, weights[:count], lengths)


@pytest.mark.slow
def test_weights_of_compiled_collections_get_gradients() -> None:
    found = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = Collection()
        call: Any = model
        if is_compiled:
            call = torch.compile(model, backend="aot_eager", fullgraph=True)
        optimizer = Optimizer(model, torch.optim.Adagrad, lr=0.5)
        weights = torch.linspace(0.5, 2, 20).requires_grad_()
        for size in (3, 5):
            call(batch_of(size, weights)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        assert weights.grad is not None
        found.append([weights.grad, call(batch_of(4, weights))])
    assert same_bits(*found)


@pytest.mark.parametrize("is_strict", [False, pytest.param(True, marks=pytest.mark.long)])
def test_exported_programs_look_up_in_the_tables_of_the_process(is_strict: bool) -> None:
    model, weights = Collection(), torch.ones(20)
    optimizer = Optimizer(model, torch.optim.SGD, lr=1.0)
    any_size = {0: torch.export.Dim.AUTO}
    program = torch.export.export(
        model.eval(),
        (batch_of(3, weights),),
        dynamic_shapes=([any_size, any_size, any_size],),
        strict=is_strict,
    )
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    call: Any = torch.export.load(stored).module()
    model.train()
    model(batch_of(3, weights)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    batch = batch_of(5, weights)
    assert torch.equal(call(batch), model(batch))
    (op,) = [node for node in program.graph.nodes if "sparring" in str(node.target)]
    assert model.bags.op_name in op.args


class Sequences(nn.Module):
    """Two features in one table, one of which is also in a table of another dim."""

    def __init__(self, device: str | None = None, dtype: str = "float32") -> None:
        super().__init__()
        where: dict[str, Any] = {"storage": "memory"} if device is None else {"device": device}
        tables = [
            EmbeddingConfig(name="a", embedding_dim=2, feature_names=["x", "y"]),
            EmbeddingConfig(name="b", embedding_dim=4, feature_names=["x"], data_type=dtype),
        ]
        self.sequences = EmbeddingCollection(tables, **where)

    def forward(self, batch: KeyedJaggedTensor) -> Tensor:
        found, again = self.sequences(batch), self.sequences(batch)
        joined = torch.cat([found["y"].values(), found["x@a"].values()])
        padded = found["x@b"].to_padded_dense(1, 0.5) * found["x@b"].to_padded_dense(3)[:, 1:]
        loss: Tensor = torch.sin(joined * 3).sum() + again["x@a"].values().square().sum()
        return loss + torch.cos(padded).sum()


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param(None, "float32", marks=pytest.mark.slow),
        pytest.param(None, "float64", marks=pytest.mark.long),
        pytest.param("emulated", "float32", marks=pytest.mark.long),
    ],
)
def test_sequences_of_known_lengths_train_compiled_bit_for_bit(
    device: str | None, dtype: str
) -> None:
    found = []
    for is_compiled in (False, True):
        model: Any = Sequences(device, dtype)
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if is_compiled else model
        optimizer = Optimizer(model, torch.optim.Adagrad, lr=0.1)
        losses = []
        for size in (3, 5, 4):
            loss = call(batch_of(size, torch.ones(20)).sync())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        model.eval()
        with torch.no_grad():
            losses += [call(batch_of(size, torch.ones(20)).sync()) for size in (2, 6)]
        assert optimizer.container.resources.num_batch_inputs == 0
        found.append(losses)
    assert same_bits(*found)
    assert len(set(map(float, found[0]))) == 5


def test_sequences_of_unknown_lengths_are_looked_up_between_graphs() -> None:
    model, batch = Sequences(), batch_of(3, torch.ones(20))
    optimizer = Optimizer(model, torch.optim.SGD, lr=1.0)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="_forward_unsynced"):
        torch.compile(model, backend="eager", fullgraph=True)(batch)
    call: Any = torch.compile(model, backend="eager")
    call(batch).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert model.sequences.num_rows() == {"a": 4, "b": 3}


@pytest.mark.parametrize("is_strict", [pytest.param(False, marks=pytest.mark.long), True])
def test_exported_programs_look_up_sequences(is_strict: bool) -> None:
    model, weights = Sequences().eval(), torch.ones(20)
    any_size = {0: torch.export.Dim.AUTO}
    program = torch.export.export(
        model,
        (batch_of(3, weights),),
        dynamic_shapes=([any_size, any_size, any_size],),
        strict=is_strict,
    )
    call: Any = program.module()
    for size in (5, 2):
        assert torch.equal(call(batch_of(size, weights)), model(batch_of(size, weights)))


def test_a_program_whose_module_is_missing_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="rows in 'gone', but no module"):
        torch.ops.sparring.lookup(torch.arange(2), torch.zeros(1), "gone", 4)
