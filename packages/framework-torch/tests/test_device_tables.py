"""`EmbeddingBag(device=…)`: tables on a device, over the emulator, train as those on the CPU do.

Tensors of the CPU stand for a GPU's: the emulator's kernels run over them where they lie.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.errors import InvalidArgumentError, NonFiniteGradientError
from sparring_torch import EmbeddingBag, Optimizer

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


def _ids(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(-50, 50 + 30 * step, (120,), generator=generator)
    ids[::7] = -(2**63)
    cuts = torch.randint(0, 121, (29,), generator=generator).sort().values
    return ids, torch.cat([torch.zeros(1, dtype=torch.int64), cuts])


def _rows(module: EmbeddingBag) -> Tensor:
    """What ids read as now, each alone."""
    with torch.no_grad():
        return module.eval()(torch.arange(-60, 300)[:, None])


def _train(module: EmbeddingBag, optimizer: Any, num_steps: int, **weights: bool) -> list[Tensor]:
    outputs = []
    module.train()
    for step in range(1, num_steps + 1):
        _emulated.set_schedule(seed=step)
        ids, offsets = _ids(step)
        scales = torch.linspace(-1, 2, len(ids)) if weights else None
        out = module(ids, offsets, scales)
        (out.float().sin() * (1 + torch.arange(16))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(out.detach())
    _emulated.set_schedule(seed=0)
    return outputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("mode", "weights"), [("sum", {}), ("mean", {}), ("sum", {"on": True})])
def test_fused_training_gives_the_bits_of_the_cpu(
    dtype: torch.dtype, mode: str, weights: dict[str, bool]
) -> None:
    results = []
    for module in _modules(mode=mode, dtype=dtype):
        outputs = _train(module, Optimizer(module, "rowwise_adagrad", lr=0.1), 4, **weights)
        results.append((outputs, _rows(module), module.num_rows()))
    (ours, rows, count), (expected, expected_rows, expected_count) = results
    assert all(torch.equal(left, right) for left, right in zip(ours, expected, strict=True))
    assert torch.equal(rows, expected_rows)
    assert count == expected_count


def test_native_optimizers_train_tables_on_a_device() -> None:
    ours, theirs = _modules(mode="sum")
    for module in (ours, theirs):
        _train(module, Optimizer(module, torch.optim.Adam, lr=0.1), 3)
    assert torch.equal(_rows(ours), _rows(theirs))


def test_micro_batches_add_up() -> None:
    ours, theirs = _modules(mode="sum")
    for module in (ours, theirs):
        optimizer = Optimizer(module, "sgd", lr=0.1)
        for step in (1, 2, 3):
            ids, offsets = _ids(step)
            module(ids, offsets).sin().sum().backward()
        optimizer.step()
    assert torch.equal(_rows(ours), _rows(theirs))


def test_tables_here_and_there_are_trained_together() -> None:
    ours, theirs = _modules(mode="sum")
    beside = [EmbeddingBag(16, name="others", mode="sum") for _ in range(2)]
    for module, other in ((ours, beside[0]), (theirs, beside[1])):
        optimizer = Optimizer([module, other], "adagrad", lr=0.1)
        for step in (1, 2):
            ids, offsets = _ids(step)
            (module(ids, offsets) * other(ids + 7, offsets)).sum().backward()
            optimizer.step()
    assert torch.equal(_rows(ours), _rows(theirs))
    assert torch.equal(_rows(beside[0]), _rows(beside[1]))


def test_a_forward_pass_waits_for_nothing_and_a_step_three_times() -> None:
    module, _ = _modules(mode="mean")
    optimizer = Optimizer(module, "rowwise_adagrad", lr=0.1)
    ids, offsets = _ids(1)
    _train(module, optimizer, 1)
    before = _emulated.num_waits()
    module(ids, offsets).sum().backward()
    assert _emulated.num_waits() == before
    optimizer.step()
    # How many keys there are, whether gradients are finite, what the table has to grow by.
    assert _emulated.num_waits() == before + 3


def test_gradients_that_are_not_finite_change_nothing() -> None:
    module, _ = _modules(mode="sum")
    optimizer = Optimizer(module, "sgd", lr=0.1)
    _train(module, optimizer, 1)
    before = _rows(module)
    ids, offsets = _ids(1)
    module.train()
    (module(ids, offsets) * float("inf")).sum().backward()
    with pytest.raises(NonFiniteGradientError, match="'items' hold NaN or infinity"):
        optimizer.step()
    assert torch.equal(_rows(module), before)


def test_evaluation_earns_no_rows() -> None:
    module, other = _modules()
    assert torch.equal(_rows(module), _rows(other))
    assert module.num_rows() == {"items": 0}
    assert module.agent.container.resources.num_batch_inputs == 0


def test_a_graph_that_is_dropped_leaves_nothing_behind() -> None:
    module, _ = _modules()
    out = module(*_ids(1))
    assert module.agent.container.resources.num_batch_inputs == 1
    del out
    assert module.agent.container.resources.num_batch_inputs == 0


def test_offsets_beyond_the_ids_reach_no_foreign_memory() -> None:
    module, other = _modules(mode="sum")
    ids = torch.tensor([3, 4, 5])
    with torch.no_grad():
        out = module(ids, torch.tensor([0, 2, 9, 1]))
        held = other(ids, torch.tensor([0, 2, 3, 3]))
    assert torch.equal(out, held)


@pytest.mark.parametrize("last", [False, True])
def test_offsets_come_with_their_end_or_without(last: bool) -> None:
    ours, theirs = _modules(include_last_offset=last)
    ids = torch.tensor([3, 4, 5, 9])
    offsets = torch.tensor([0, 0, 3, 4])
    assert torch.equal(ours(ids, offsets), theirs(ids, offsets))
    if not last:
        assert torch.equal(ours(ids[None]), theirs(ids[None]))


def test_what_a_device_path_cannot_do_goes_by_the_host() -> None:
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


def test_a_device_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="device must be cpu or cuda, found 'meta'"):
        EmbeddingBag(4, device="meta")
    with pytest.raises(InvalidArgumentError, match="goes with storage 'hkv', found 'memory'"):
        EmbeddingBag(4, storage="memory", device="cuda")
