"""Tables on devices of several ranks, on the emulator: rows are bit-identical to ranks with CPUs, and
ids, rows and gradients never visit the host.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparring import ExchangeOptions, StepContainer
from sparring.contracts import Collective
from sparring.exchange.pull import RingPull
from sparring.exchange.push import RingPush
from sparring.exchange.ring import RingExchange
from sparring.kernels.cpu import HOST
from sparring_hkv.backend import HkvStorage
from sparring_testing.devices import why_unavailable
from sparring_testing.processes.table_steps import read_tables
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_tiered import TieredStorage
from sparring_tiered.stack.tier import Tier
from sparring_torch.device.kernels import get_kernel_set
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding import Embedding
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from sparring_torch.modules.table_module import list_agents
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.pipeline.train_pipeline import TrainPipeline

from .device_bags import two_tiers
from .emulated_ranks import run_ranks

pytestmark = pytest.mark.skipif(
    why_unavailable("emulated") is not None, reason=str(why_unavailable("emulated"))
)

NUM_STEPS = 4
Make = Callable[..., torch.nn.Module]
Rows = dict[str, dict[int, bytes]]

POOLED = [
    EmbeddingBagConfig(name="a", embedding_dim=4, feature_names=["u", "v", "w"]),
    EmbeddingBagConfig(name="b", embedding_dim=3, pooling=PoolingType.MEAN, data_type="float64"),
    EmbeddingBagConfig(name="c", embedding_dim=5, feature_names=["v"], data_type="bfloat16"),
]
SEQUENCES = [
    EmbeddingConfig(
        name=each.name,
        embedding_dim=each.embedding_dim,
        feature_names=each.feature_names,
        data_type=each.data_type,
    )
    for each in POOLED
]


def ids_of(step: int, rank: int, world_size: int) -> Tensor:
    """Batches of different sizes per rank, with overlaps; in some steps empty on one rank or all."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    count = 0 if step % world_size == rank or step == 3 else 7 + 13 * rank
    ids = torch.randint(-40, 40 + 20 * step, (count,), generator=generator)
    ids[3::7] = -(2**63)
    return ids


def jagged(step: int, rank: int, world_size: int) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    lengths = torch.randint(0, 4, (4 * 5,), generator=generator)
    if step % world_size == rank or step == 3:
        lengths[:] = 0
    ids = torch.randint(-9, 60, (int(lengths.sum()),), generator=generator)
    return KeyedJaggedTensor(["w", "b", "u", "v"], ids, torch.linspace(-1, 1, len(ids)), lengths)


class Bags(torch.nn.Module):
    def __init__(self, weighted: bool = False, **given: Any) -> None:
        super().__init__()
        self.bags = EmbeddingBag(6, name="items", mode="sum" if weighted else "mean", **given)
        self.weighted = weighted

    def forward(self, step: int, rank: int, world_size: int) -> Tensor:
        ids = ids_of(step, rank, world_size)
        offsets = torch.arange(0, len(ids) + 1, 3)
        weights = torch.linspace(-1, 2, len(ids)) if self.weighted else None
        return self.bags(ids, offsets, weights)


class Single(torch.nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.single = Embedding(6, name="items", padding_idx=3, **given)

    def forward(self, step: int, rank: int, world_size: int) -> Tensor:
        return self.single(ids_of(step, rank, world_size))


class Collections(torch.nn.Module):
    def __init__(self, weighted: bool = False, **given: Any) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(tables=POOLED, is_weighted=weighted, **given)

    def forward(self, step: int, rank: int, world_size: int) -> Tensor:
        return self.bags(jagged(step, rank, world_size)).values()


class Sequences(torch.nn.Module):
    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.rows = EmbeddingCollection(tables=SEQUENCES, **given)

    def forward(self, step: int, rank: int, world_size: int) -> Tensor:
        found = self.rows(jagged(step, rank, world_size))
        return torch.cat([each.values().sin().sum(1) for each in found.values()])


MODULES: dict[str, tuple[Make, dict[str, Any]]] = {
    "bag": (Bags, {}),
    "bag-weighted": (Bags, {"weighted": True}),
    "bag-bfloat16": (Bags, {"dtype": torch.bfloat16}),
    "single": (Single, {}),
    "bags": (Collections, {}),
    "bags-weighted": (Collections, {"weighted": True}),
    "sequences": (Sequences, {}),
}


def backward(output: Tensor) -> None:
    scales = torch.linspace(1, 2, output.numel()).reshape(output.shape)
    (output.double().sin() * scales).sum().backward()


def train(
    container: StepContainer,
    module: torch.nn.Module,
    optimizer: Any,
    num_steps: int = NUM_STEPS,
    micro_batches: int = 1,
) -> list[Tensor]:
    rank, world_size = container.collective.rank, container.collective.world_size
    updates = Optimizer(module, optimizer, lr=0.1)
    outputs = []
    for step in range(num_steps):
        for part in range(micro_batches):
            output = module(step + 10 * part, rank, world_size)
            # A rank may have no gradient from a batch.
            if output.numel() and (step, rank) != (1, 0):
                backward(output)
            outputs.append(output.detach())
        updates.step()
        updates.zero_grad()
    with torch.no_grad():
        outputs.append(module.eval()(50, rank, world_size))
    module.train()
    return outputs


def trained(
    way: str, world_size: int, make: Make, optimizer: Any, **options: Any
) -> list[tuple[list[Tensor], Rows, Any]]:
    """Returns outputs, rows and counts of each rank.

    Args:
        way: transport of messages of devices; ``host``: tables are on the CPU.
    """
    exchange = options.pop("exchange", ExchangeOptions(chunk_rows=16, chunks_in_flight=2))
    micro_batches = options.pop("micro_batches", 1)
    where = {} if way == "host" else {"device": "emulated"}

    def body(collective: Collective) -> Any:
        rendezvous = ThreadRendezvous(world_size)
        made = StepContainer(collective=collective, rendezvous=rendezvous, exchange=exchange)
        with made as container:
            module = make(container=container, **where, **options)
            outputs = train(container, module, optimizer, micro_batches=micro_batches)
            counted = container.counters, {n: container.num_rows(n) for n in container.tables}
            return outputs, read_tables(container), counted

    return run_ranks(way, world_size, body)


def check_same(found: list[Any], expected: list[Any]) -> None:
    for (outputs, rows, counted), (known, known_rows, known_counted) in zip(
        found, expected, strict=True
    ):
        for one, other in zip(outputs, known, strict=True):
            assert torch.equal(one, other)
        assert rows == known_rows
        assert counted == known_counted


@pytest.fixture
def _nothing_visits_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Checks that only small arrays visit the host: the number of keys per rank, and one byte per row
    that shows whether it was found.
    """
    kernels = get_kernel_set("emulated")
    arrays = kernels.arrays

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this is the way of the host")

    def to_host(array: Any) -> Any:
        assert array.dim() == 1
        assert array.dtype in (torch.uint8, torch.bool) or len(array) <= 5
        return arrays.to_host(array)

    def from_host(array: Any) -> Any:
        # The shard map, the number of ranks, and the optimizer's state of a new row.
        assert array.ndim == 1, "rows or gradients came from the host"
        assert array.dtype != np.int64, "ids or keys came from the host"
        return arrays.from_host(array)

    with monkeypatch.context() as patched:
        for kind, name in (
            (RingPull, "run"),
            (RingPush, "run"),
            (HkvStorage, "_find_impl"),
            (HkvStorage, "_upsert_impl"),
            (TieredStorage, "_find_impl"),
            (TieredStorage, "_upsert_impl"),
        ):
            patched.setattr(kind, name, refuse)
        patched.setattr(kernels, "arrays", replace(arrays, to_host=to_host, from_host=from_host))
        yield


# Other tests train over the direct transport on 2 ranks with a fused optimizer.
TRANSPORTS_IN_SHORT = {
    ("direct", 3, "native"),
    ("staged", 2, "fused"),
    ("nccl", 2, "native"),
    ("nccl", 3, "fused"),
}


@pytest.mark.parametrize(
    ("way", "world_size", "optimizer"),
    [
        pytest.param(
            way,
            world_size,
            optimizer,
            id=f"{way}-{world_size}-{kind}",
            marks=[] if (way, world_size, kind) in TRANSPORTS_IN_SHORT else pytest.mark.long,
        )
        for way in ("direct", "staged", "nccl")
        for world_size in (2, 3)
        for kind, optimizer in (("fused", "rowwise_adagrad"), ("native", torch.optim.Adam))
    ],
)
def test_every_transport_has_the_bits_of_the_host(
    way: str, world_size: int, optimizer: Any, request: pytest.FixtureRequest
) -> None:
    expected = trained("host", world_size, Collections, optimizer)
    request.getfixturevalue("_nothing_visits_the_host")
    check_same(trained(way, world_size, Collections, optimizer), expected)


# Each module once, and each class with both numbers of micro-batches and both kinds of optimizers.
MODULES_IN_SHORT: dict[tuple[str, int, str], Any] = {
    ("bag", 3, "fused"): [],
    ("bag-weighted", 1, "native"): pytest.mark.slow,
    ("bag-bfloat16", 3, "native"): pytest.mark.slow,
    ("single", 1, "fused"): pytest.mark.slow,
    ("single", 3, "native"): [],
    ("bags", 3, "native"): pytest.mark.slow,
    ("bags-weighted", 1, "fused"): [],
    ("sequences", 1, "native"): [],
    ("sequences", 3, "fused"): pytest.mark.slow,
}


@pytest.mark.parametrize(
    ("name", "micro_batches", "optimizer"),
    [
        pytest.param(
            name,
            micro_batches,
            optimizer,
            id=f"{name}-{micro_batches}-{kind}",
            marks=MODULES_IN_SHORT.get((name, micro_batches, kind), pytest.mark.long),
        )
        for name in MODULES
        for micro_batches in (1, 3)
        for kind, optimizer in (("fused", "adagrad"), ("native", torch.optim.Adagrad))
    ],
)
def test_every_module_has_the_bits_of_the_host(
    name: str, micro_batches: int, optimizer: Any, request: pytest.FixtureRequest
) -> None:
    make, options = MODULES[name]
    options = {**options, "micro_batches": micro_batches}
    expected = trained("host", 3, make, optimizer, **options)
    request.getfixturevalue("_nothing_visits_the_host")
    check_same(trained("staged", 3, make, optimizer, **options), expected)


def test_many_micro_batches_are_added_before_they_are_sent() -> None:
    options = {"micro_batches": 12}
    expected = trained("host", 2, Bags, "adagrad", **options)
    check_same(trained("direct", 2, Bags, "adagrad", **options), expected)


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adam], ids=["fused", "native"])
@pytest.mark.parametrize("admission", [{"kind": "frequency", "k": 2}, {"kind": "bloom", "k": 2}])
def test_owners_admit_the_same_ids(admission: dict[str, Any], optimizer: Any) -> None:
    expected = trained("host", 2, Bags, optimizer, admission=admission)
    assert any(counted[0].gradients_not_admitted for _, _, counted in expected)
    check_same(trained("direct", 2, Bags, optimizer, admission=admission), expected)


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adam], ids=["fused", "native"])
@pytest.mark.parametrize("capacity", [8, 10_000], ids=["small", "large"])
def test_stacks_with_a_first_tier_on_a_device_have_the_bits_of_one_table(
    capacity: int, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the first tier do not visit the host."""
    warm: set[int] = set()

    def body(collective: Collective, storage: Any) -> Any:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            module = Bags(storage=storage, container=container)
            outputs = train(container, module, optimizer)
            if storage != "hkv":
                assert all(each.stays_on_device for each in list_agents(module))
                if capacity > 8:
                    warm.add(threading.get_ident())
            outputs += train(container, module, optimizer)
            warm.discard(threading.get_ident())
            if storage != "hkv":
                first, last = container.tier_counters("items")
                assert (first.evictions > 0) == (last.hits > 0) == (capacity == 8)
            return outputs, read_tables(container), None

    for kind, name in (
        (TieredStorage, "_find_impl"),
        (TieredStorage, "_upsert_impl"),
        (Tier, "find"),
    ):
        real = getattr(kind, name)

        def watched(*given: Any, real: Any = real) -> Any:
            assert threading.get_ident() not in warm, "this is the way of the host"
            return real(*given)

        monkeypatch.setattr(kind, name, watched)
    expected = run_ranks("host", 2, lambda each: body(each, "hkv"))
    check_same(
        run_ranks("direct", 2, lambda each: body(each, two_tiers("emulated", capacity))), expected
    )


def test_a_pipeline_leaves_batches_on_the_device() -> None:
    """Results equal the plain loop's, and nothing is prefetched via the host."""

    class Loss(torch.nn.Module):
        def __init__(self, bags: EmbeddingBag) -> None:
            super().__init__()
            self.bags = bags

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
            out = self.bags(ids)
            return out.sin().sum(), out.detach()

    def body(collective: Collective) -> Any:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            bags = EmbeddingBag(4, name="items", device="emulated", container=container)
            pipeline = TrainPipeline(Loss(bags), Optimizer(bags, "sgd", lr=0.1))
            batches = iter([torch.arange(12).reshape(3, 4) + step for step in range(4)])
            outputs = [pipeline.progress(batches) for _ in range(4)]
            assert pipeline.pipelined == []
            assert container.prefetches.counters.lookups == 0
            return outputs

    ours, theirs = run_ranks("direct", 2, body)
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adam], ids=["fused", "native"])
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_tables_on_a_device_and_on_the_cpu_are_updated_separately(
    shared: bool, optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another module looks up the table on the device together with one on the CPU."""
    pushed: set[tuple[str, ...]] = set()
    push_all = RingExchange.push_all

    def seen(self: Any, requests: Any, **named: Any) -> Any:
        if named.get("kernels", HOST) is HOST:
            pushed.add(tuple(each.table.name for each in requests))
        return push_all(self, requests, **named)

    monkeypatch.setattr(RingExchange, "push_all", seen)

    def body(collective: Collective, there: dict[str, Any]) -> Any:
        with StepContainer(collective=collective, rendezvous=ThreadRendezvous(2)) as container:
            given: dict[str, Any] = {"container": container}
            items = EmbeddingBag(4, name="items", mode="sum", **there, **given)
            others = EmbeddingBag(4, name="others", mode="sum", **given)
            modules: list[torch.nn.Module] = [items, others]
            if shared:
                tables = [
                    EmbeddingBagConfig(
                        name="items", embedding_dim=4, storage={"backend": "hkv", **there}
                    ),
                    EmbeddingBagConfig(name="others", embedding_dim=4),
                ]
                modules.append(EmbeddingBagCollection(tables, container=container, shared=True))
            updates = Optimizer(modules, optimizer, lr=0.1)
            for step in range(4):
                ids = ids_of(step, collective.rank, 2).reshape(-1, 1)
                output = items(ids) if step == 1 else items(ids) * others(ids + 3)
                backward(output)
                if shared:
                    lengths = torch.full((2,), len(ids))
                    batch = KeyedJaggedTensor(
                        ["items", "others"], torch.cat([ids, ids]).reshape(-1), None, lengths
                    )
                    backward(modules[-1](batch).values())
                updates.step()
                updates.zero_grad()
            return read_tables(container)

    ours = run_ranks("direct", 2, lambda each: body(each, {"device": "emulated"}))
    assert pushed == {("others",)}
    assert ours == run_ranks("direct", 2, lambda each: body(each, {}))


@pytest.mark.parametrize(
    "exchange",
    [ExchangeOptions(row_wire_dtype="float16"), ExchangeOptions(gradient_wire_dtype="bfloat16")],
    ids=["rows", "gradients"],
)
def test_numbers_that_are_sent_in_fewer_bits_go_through_the_host(
    exchange: ExchangeOptions,
) -> None:
    expected = trained("host", 2, Bags, "adagrad", exchange=exchange)
    check_same(trained("direct", 2, Bags, "adagrad", exchange=exchange), expected)


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adam], ids=["fused", "native"])
def test_replicated_tables_are_read_on_the_device(optimizer: Any) -> None:
    """Their gradients are sent to all ranks via the host."""
    expected = trained("host", 2, Bags, optimizer, placement="replicated")
    check_same(trained("direct", 2, Bags, optimizer, placement="replicated"), expected)
