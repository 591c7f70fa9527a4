"""`EmbeddingBag(device=…)`: tables on the emulator train like tables on the CPU.

The emulator uses host memory, so tensors are CPU tensors.
"""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import Tensor

from sparring import Frequency, StepContainer
from sparring.adapter import DeviceGradients
from sparring.errors import CapacityError, InvalidArgumentError, NonFiniteGradientError
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.modules.embedding_bag_collection import EmbeddingBagCollection
from sparring_torch.modules.embedding_collection import EmbeddingCollection
from sparring_torch.modules.table_configs import EmbeddingBagConfig, EmbeddingConfig, PoolingType
from sparring_torch.optim.optimizer import Optimizer
from sparring_torch.pipeline.train_pipeline import TrainPipeline

from .device_bags import bags_of, read_all

_emulated = pytest.importorskip(
    "sparring_hkv._emulated",
    reason="sparring-hkv was built without the emulator (-DSPARRING_HKV_EMULATED=ON)",
)


def _modules(**given: Any) -> tuple[EmbeddingBag, EmbeddingBag]:
    """The same module with its table on a device and on the CPU."""
    return (
        EmbeddingBag(16, name="items", device="emulated", **given),
        EmbeddingBag(16, name="items", **given),
    )


def _num_waits() -> int:
    """Returns how often the host waited for the emulator; freed tables of other tests wait, too."""
    gc.collect()
    waits: int = _emulated.num_waits()
    return waits


def _train(module: EmbeddingBag, optimizer: Any, num_steps: int, **weights: bool) -> list[Tensor]:
    outputs = []
    module.train()
    for step in range(1, num_steps + 1):
        _emulated.set_schedule(seed=step)
        ids, offsets = bags_of(step)
        scales = torch.linspace(-1, 2, len(ids)) if weights else None
        out = module(ids, offsets, scales)
        (out.float().sin() * (1 + torch.arange(16))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(out.detach())
    _emulated.set_schedule(seed=0)
    return outputs


@pytest.mark.parametrize(
    ("mode", "weights", "dtype"),
    [
        ("sum", {}, torch.float32),
        ("mean", {}, torch.bfloat16),
        ("mean", {}, torch.float64),
        ("sum", {"on": True}, torch.float32),
        ("sum", {"on": True}, torch.bfloat16),
    ],
)
def test_fused_training_has_the_bits_of_the_cpu(
    mode: str, weights: dict[str, bool], dtype: torch.dtype
) -> None:
    results = []
    for module in _modules(mode=mode, dtype=dtype):
        outputs = _train(module, Optimizer(module, "rowwise_adagrad", lr=0.1), 4, **weights)
        results.append((outputs, read_all(module), module.num_rows()))
    (ours, rows, count), (expected, expected_rows, expected_count) = results
    assert all(torch.equal(left, right) for left, right in zip(ours, expected, strict=True))
    assert torch.equal(rows, expected_rows)
    assert count == expected_count


NATIVE: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.3}),
    (torch.optim.Adam, {"lr": 0.1, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5}),
    (torch.optim.NAdam, {"lr": 0.1}),
]


@pytest.mark.parametrize(
    ("native", "hyper", "dtype"),
    [
        pytest.param(
            *each,
            dtype,
            id=f"{each[0].__name__}-{dtype}",
            marks=[] if at_dtype == number % 3 else pytest.mark.long,
        )
        for number, each in enumerate(NATIVE)
        for at_dtype, dtype in enumerate((torch.float32, torch.float64, torch.bfloat16))
    ],
)
def test_native_optimizers_have_the_bits_of_the_cpu(
    native: type[torch.optim.Optimizer], hyper: dict[str, Any], dtype: torch.dtype
) -> None:
    ours, theirs = _modules(mode="sum", dtype=dtype)
    for module in (ours, theirs):
        _train(module, Optimizer(module, native, **hyper), 3)
    assert torch.equal(read_all(ours), read_all(theirs))
    assert ours.num_rows() == theirs.num_rows()


def test_a_native_optimizer_steps_on_the_device_of_the_rows() -> None:
    module, _ = _modules(mode="sum")
    optimizer = Optimizer(module, torch.optim.Adam, lr=0.1)
    _train(module, optimizer, 1)
    ids, offsets = bags_of(1)
    module(ids, offsets).sum().backward()
    before = _num_waits()
    optimizer.step()
    optimizer.zero_grad()
    # The number of keys, whether gradients are finite, and by how much the table has to grow: rows,
    # and buckets that overflow.
    assert _emulated.num_waits() <= before + 4


def test_calls_do_not_change_the_current_device() -> None:
    module, _ = _modules(mode="sum")
    optimizer = Optimizer(module, "sgd", lr=0.1)
    _emulated.set_current_device(3)
    try:
        _train(module, optimizer, 2)
        assert _emulated.current_device() == 3
    finally:
        _emulated.set_current_device(0)


def test_micro_batches_add_up() -> None:
    ours, theirs = _modules(mode="sum")
    for module in (ours, theirs):
        optimizer = Optimizer(module, "sgd", lr=0.1)
        for step in (1, 2, 3):
            ids, offsets = bags_of(step)
            module(ids, offsets).sin().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(read_all(ours), read_all(theirs))


@pytest.mark.parametrize("optimizer", ["sgd", torch.optim.SGD], ids=["fused", "native"])
def test_many_micro_batches_allocate_memory_only_for_their_keys(optimizer: Any) -> None:
    results = []
    for module in _modules(mode="sum"):
        chosen = Optimizer(module, optimizer, lr=0.1)
        for step in range(1, 21):
            ids, offsets = bags_of(step)
            module(ids, offsets).sin().sum().backward()
        if module.agent.stays_on_device:
            held = module.agent.container.resources._held["items"].sources
            assert isinstance(held, DeviceGradients)
            assert len(held.batches) < 8
        chosen.step()
        chosen.zero_grad()
        results.append(read_all(module))
    assert torch.equal(*results)


def test_a_forward_pass_does_not_wait_and_a_step_waits_twice() -> None:
    module, _ = _modules(mode="mean")
    optimizer = Optimizer(module, "rowwise_adagrad", lr=0.1)
    ids, offsets = bags_of(1)
    _train(module, optimizer, 1)
    before = _num_waits()
    module(ids, offsets).sum().backward()
    assert _emulated.num_waits() == before
    optimizer.step()
    optimizer.zero_grad()
    # The number of keys, whether gradients are finite, and by how much the table has to grow.
    assert _emulated.num_waits() == before + 2


def test_non_finite_gradients_change_nothing() -> None:
    module, _ = _modules(mode="sum")
    optimizer = Optimizer(module, "sgd", lr=0.1)
    _train(module, optimizer, 1)
    before = read_all(module)
    ids, offsets = bags_of(1)
    module.train()
    (module(ids, offsets) * float("inf")).sum().backward()
    with pytest.raises(NonFiniteGradientError, match="'items' contain NaN or infinity"):
        optimizer.step()
    assert torch.equal(read_all(module), before)


def test_evaluation_creates_no_rows() -> None:
    module, other = _modules()
    assert torch.equal(read_all(module), read_all(other))
    assert module.num_rows() == {"items": 0}
    assert module.agent.container.resources.num_batch_inputs == 0


def test_a_dropped_graph_leaves_nothing() -> None:
    module, _ = _modules()
    out = module(*bags_of(1))
    assert module.agent.container.resources.num_batch_inputs == 1
    del out
    assert module.agent.container.resources.num_batch_inputs == 0


def test_offsets_beyond_the_ids_read_no_foreign_memory() -> None:
    module, other = _modules(mode="sum")
    ids = torch.tensor([3, 4, 5])
    with torch.no_grad():
        out = module(ids, torch.tensor([0, 2, 9, 1]))
        held = other(ids, torch.tensor([0, 2, 3, 3]))
    assert torch.equal(out, held)


@pytest.mark.parametrize("last", [False, True])
def test_offsets_are_accepted_with_or_without_their_end(last: bool) -> None:
    ours, theirs = _modules(include_last_offset=last)
    ids = torch.tensor([3, 4, 5, 9])
    offsets = torch.tensor([0, 0, 3, 4])
    assert torch.equal(ours(ids, offsets), theirs(ids, offsets))
    if not last:
        assert torch.equal(ours(ids[None]), theirs(ids[None]))


def test_padding_and_gradients_of_weights_stay_on_the_device() -> None:
    ours, theirs = _modules(mode="sum", padding_idx=4)
    ids = torch.tensor([[3, 4, 5], [4, 4, 4]])
    assert torch.equal(ours(ids), theirs(ids))
    ours, theirs = _modules(mode="sum")
    gradients = []
    for module in (ours, theirs):
        weights = torch.full((2, 3), 0.5, requires_grad=True)
        module(ids, per_sample_weights=weights).sum().backward()
        assert weights.grad is not None
        gradients.append(weights.grad)
    assert torch.equal(*gradients)
    assert theirs.agent.path_for(ids, is_training=False) is None
    assert ours.agent.path_for(ids, is_training=False) is not None


TABLES = [
    EmbeddingBagConfig(name="a", embedding_dim=4, feature_names=["u", "v", "w"]),
    EmbeddingBagConfig(name="b", embedding_dim=3, pooling=PoolingType.MEAN, data_type="float64"),
    EmbeddingBagConfig(name="c", embedding_dim=8, feature_names=["v"], data_type="bfloat16"),
]


def _batch(step: int, order: list[str]) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(0, 4, (len(order) * 10,), generator=generator)
    count = int(lengths.sum())
    ids = torch.randint(-9, 60, (count,), generator=generator)
    return KeyedJaggedTensor(order, ids, torch.linspace(-1, 1, count), lengths)


@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.parametrize("order", [["u", "v", "w", "b"], ["w", "b", "u", "v"]], ids="".join)
def test_collections_train_as_on_the_cpu(order: list[str], is_weighted: bool) -> None:
    results = []
    for where in ({"device": "emulated"}, {}):
        module = EmbeddingBagCollection(tables=TABLES, is_weighted=is_weighted, **where)
        optimizer = Optimizer(module, "adagrad", lr=0.1)
        for step in (1, 2, 3):
            for part in (0, 7):
                values = module(_batch(step + part, order)).values()
                (values * torch.arange(values.shape[1])).cos().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append((module(_batch(50, order)).values(), module.num_rows()))
    assert torch.equal(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_collections_of_sequences_train_as_on_the_cpu() -> None:
    tables = [EmbeddingConfig(name=each.name, embedding_dim=each.embedding_dim,
                              feature_names=each.feature_names) for each in TABLES]  # fmt: skip
    results = []
    for where in ({"device": "emulated"}, {}):
        module = EmbeddingCollection(tables=tables, **where)
        optimizer = Optimizer(module, "sgd", lr=0.1)
        for step in (1, 2):
            found = module(_batch(step, ["w", "b", "u", "v"]))
            torch.cat([each.values().sin().sum(1) for each in found.values()]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(module(_batch(9, ["w", "b", "u", "v"])))
    ours, theirs = results
    assert list(ours) == list(theirs)
    for name, found in ours.items():
        assert torch.equal(found.values(), theirs[name].values())
        assert found.lengths().tolist() == theirs[name].lengths().tolist()


def test_a_collection_reads_without_waiting() -> None:
    module = EmbeddingBagCollection(tables=TABLES, device="emulated")
    batch = _batch(1, ["u", "v", "w", "b"]).sync()
    before = _num_waits()
    module(batch).values().sum().backward()
    assert _emulated.num_waits() == before


def test_ids_on_another_device_are_rejected_naming_both_devices() -> None:
    module, _ = _modules()
    with pytest.raises(
        InvalidArgumentError, match="'items' is on emulated, but the ids are on meta"
    ):
        module(torch.empty(2, 2, dtype=torch.int64, device="meta"))
    sums, _ = _modules(mode="sum")
    weights = torch.empty(2, 2, device="meta")
    with pytest.raises(InvalidArgumentError, match="is on emulated, but the weights are on meta"):
        sums(torch.ones(2, 2, dtype=torch.int64), per_sample_weights=weights)


def test_a_pipeline_looks_nothing_up_on_the_host() -> None:
    module, _ = _modules()
    pipeline = TrainPipeline(_Loss(module), Optimizer(module, "sgd", lr=0.1))
    batches = iter([torch.arange(12).reshape(3, 4) + step for step in range(4)])
    for _ in range(4):
        pipeline.progress(batches)
    assert pipeline.pipelined == []
    assert module.agent.container.prefetches.counters.lookups == 0


class _Loss(torch.nn.Module):
    def __init__(self, module: EmbeddingBag) -> None:
        super().__init__()
        self.module = module

    def forward(self, ids: Tensor) -> tuple[Tensor, None]:
        return self.module(ids).sum(), None


def test_an_invalid_device_is_rejected() -> None:
    for device in ("mps", "gpu0"):
        expected = f"device must be cpu or cuda, found '{device}'"
        with pytest.raises(InvalidArgumentError, match=expected):
            EmbeddingBag(4, device=device)
    with pytest.raises(InvalidArgumentError, match="requires storage 'hkv', found 'memory'"):
        EmbeddingBag(4, storage="memory", device="cuda")


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adagrad], ids=["fused", "native"])
def test_ids_that_the_filter_rejects_take_no_capacity(optimizer: Any) -> None:
    def train(where: str) -> tuple[list[bool], dict[int, bytes], int]:
        container = StepContainer()
        modules = [
            EmbeddingBag(
                4,
                name="small",
                container=container,
                device=where,
                num_embeddings=15,
                admission=Frequency(2),
            ),
            EmbeddingBag(4, name="other", container=container, device=where),
        ]
        trained = Optimizer(modules, optimizer, lr=0.1)
        is_refused = []
        # Steps that admit none, ten and five ids, and one that would admit one too many.
        for ids in (range(100), range(10), range(100, 190), range(5, 15), range(90, 190)):
            given = torch.tensor([list(ids)])
            sum(module(given) for module in modules).sum().backward()
            try:
                trained.step()
                trained.zero_grad()
                is_refused.append(False)
            except CapacityError:
                is_refused.append(True)
        rows = {
            int(key): row.tobytes()
            for chunk in container.storage("small").scan()
            for key, row in zip(chunk.keys, chunk.rows, strict=True)
        }
        return is_refused, rows, container.counters.gradients_not_admitted

    ours = train("emulated")
    assert ours == train("cpu")
    assert ours[0] == [False, False, False, False, True]
    assert set(ours[1]) == set(range(15))
