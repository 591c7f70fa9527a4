"""Tables in tiers, of which the first is on a device: rows on the device stay there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparring.errors import StorageIOError
from sparring_tiered import TieredStorage
from sparring_tiered.stack.tier import Tier
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

from .device_bags import read_all, two_tiers

CPU = torch.device("cpu")


def _train(module: EmbeddingBag, optimizer: Any, where: torch.device, num_steps: int = 6) -> Tensor:
    module.train()
    chosen = Optimizer(module, optimizer, lr=0.1)
    for step in range(num_steps):
        generator = torch.Generator().manual_seed(step)
        for _ in range(2):
            ids = torch.randint(-20 * step, 60 + 20 * step, (12, 4), generator=generator)
            weights = torch.rand(12, 4, generator=generator).to(where).requires_grad_()
            module(ids.to(where), per_sample_weights=weights).float().sin().sum().backward()
        chosen.step()
        chosen.zero_grad()
    return read_all(module, where)


# All pairs of the two policies, and of the kind of optimizer and the dtype.
IN_SHORT = {
    ("back", "always", "native", torch.float32),
    ("back", "second_touch", "fused", torch.bfloat16),
    ("back", "never", "native", torch.float64),
    ("through", "always", "fused", torch.float64),
    ("through", "second_touch", "native", torch.bfloat16),
    ("through", "never", "fused", torch.float32),
}


@pytest.mark.parametrize(
    ("write", "promote", "optimizer", "dtype"),
    [
        pytest.param(
            write,
            promote,
            optimizer,
            dtype,
            id=f"{write}-{promote}-{kind}-{dtype}",
            marks=[] if (write, promote, kind, dtype) in IN_SHORT else pytest.mark.long,
        )
        for write in ("back", "through")
        for promote in ("always", "second_touch", "never")
        for kind, optimizer in (("fused", "adagrad"), ("native", torch.optim.Adagrad))
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    ],
)
def test_tiers_have_the_bits_of_one_table(
    write: str, promote: str, optimizer: Any, dtype: torch.dtype, device_place: Any
) -> None:
    given: dict[str, Any] = {"name": "items", "mode": "sum", "dtype": dtype}
    ours = EmbeddingBag(
        8, storage=two_tiers(device_place.name, 100, write=write, promote=promote), **given
    )
    theirs = EmbeddingBag(8, **given)
    expected = _train(theirs, optimizer, CPU)
    assert device_place.agree(_train(ours, optimizer, device_place.device), expected)
    assert ours.num_rows() == theirs.num_rows()
    first, last = ours.agent.container.tier_counters("items")
    assert first.rows <= 100
    assert first.evictions > 0
    assert last.hits > 0


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adagrad], ids=["fused", "native"])
def test_a_step_larger_than_the_first_tier_is_applied_whole(
    optimizer: Any, device_place: Any
) -> None:
    ours = EmbeddingBag(8, name="items", mode="sum", storage=two_tiers(device_place.name, 6))
    theirs = EmbeddingBag(8, name="items", mode="sum")
    expected = _train(theirs, optimizer, CPU)
    assert device_place.agree(_train(ours, optimizer, device_place.device), expected)
    assert ours.num_rows() == theirs.num_rows()


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adagrad], ids=["fused", "native"])
def test_rows_of_the_first_tier_are_not_copied_to_the_host(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch, device_place: Any
) -> None:
    module = EmbeddingBag(8, name="items", mode="sum", storage=two_tiers(device_place.name, 10_000))
    _train(module, optimizer, device_place.device, 1)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("this is the way of the host")

    for kind, name in (
        (TieredStorage, "_find_impl"),
        (TieredStorage, "_upsert_impl"),
        (Tier, "find"),
    ):
        monkeypatch.setattr(kind, name, refuse)
    _train(module, optimizer, device_place.device, 1)


def test_a_failing_lower_tier_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, device_place: Any
) -> None:
    where = device_place.device
    # The next tier is a Python storage, which a test can make fail.
    stacked = two_tiers(device_place.name, 60, "memory")
    module = EmbeddingBag(8, name="items", mode="sum", storage=stacked)
    before = _train(module, "adagrad", where)
    rows = module.num_rows()
    stack = module.agent.container.storage("items")
    assert isinstance(stack, TieredStorage)

    def fail(*_: Any) -> None:
        raise StorageIOError("the disk is gone")

    module.train()
    ids = torch.arange(-50, 50, device=where)[None]
    module(ids).sum().backward()
    with monkeypatch.context() as broken:
        broken.setattr(stack._stack.last.storage, "_find_impl", fail)
        optimizer = Optimizer(module, "adagrad", lr=0.1)
        with pytest.raises(StorageIOError, match="the disk is gone"):
            module(ids)
        stack._stack.promotion.clear()
        with pytest.raises(StorageIOError, match="the disk is gone"):
            optimizer.step()
    assert torch.equal(read_all(module, where), before)
    assert module.num_rows() == rows
