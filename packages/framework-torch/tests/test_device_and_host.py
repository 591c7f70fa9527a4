"""Steps over tables on the emulator and tables on the CPU: all of them take a step, or none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparring import Frequency, Uniform
from sparring.adapter import DeviceGradients, MemoryStorage, parse_hyper, resolve_method
from sparring.contracts import HyperParameters, MethodChoice, TableConfig, UpdateMethod, UpdateRows
from sparring.errors import CapacityError, PartialStepError, StorageIOError
from sparring_testing.devices import why_unavailable
from sparring_torch.device.kernels import get_kernel_set
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

from .device_bags import read_all

pytestmark = pytest.mark.skipif(
    why_unavailable("emulated") is not None, reason=str(why_unavailable("emulated"))
)


def bags(step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(-50, 50 + 30 * step, (120,), generator=generator)
    return ids, torch.arange(0, 120, 7)


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adam], ids=["fused", "native"])
def test_a_step_updates_device_tables_on_the_device_and_others_on_the_host(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = (
        EmbeddingBag(16, name="items", mode="sum", device=each) for each in ("emulated", "cpu")
    )
    beside = [EmbeddingBag(16, name="others", mode="sum") for _ in range(2)]

    def refuse(*_: Any) -> None:
        raise AssertionError("gradients of tables on a device came to the host")

    monkeypatch.setattr(DeviceGradients, "summed", refuse)
    for module, other in ((ours, beside[0]), (theirs, beside[1])):
        chosen = Optimizer([module, other], optimizer, lr=0.1)
        for step in (1, 2, 3):
            ids, offsets = bags(step)
            out = module(ids, offsets)
            # Also steps with gradients for only one table.
            (out if step == 2 else out * other(ids + 7, offsets)).sum().backward()
            chosen.step()
            chosen.zero_grad()
        counters = module.agent.container.counters
        assert counters.steps == 3
        assert counters.rows_updated > module.num_rows()["items"]
    assert torch.equal(read_all(ours), read_all(theirs))
    assert torch.equal(read_all(beside[0]), read_all(beside[1]))


@pytest.mark.parametrize("optimizer", ["adagrad", torch.optim.Adam], ids=["fused", "native"])
@pytest.mark.parametrize("refusing", ["items", "others"])
def test_a_step_that_a_host_table_rejects_is_applied_to_no_device_table(
    refusing: str, optimizer: Any
) -> None:
    """Also with the tables exchanged."""
    modules = {
        name: EmbeddingBag(
            4,
            name=name,
            mode="sum",
            num_embeddings=20 if name == refusing else None,
            storage={"backend": "hkv", **where},
        )
        for name, where in (("items", {"device": "emulated"}), ("others", {}))
    }
    chosen = Optimizer(list(modules.values()), optimizer, lr=0.1)
    ids = torch.arange(16)[None]
    sum(module(ids).sum() for module in modules.values()).backward()
    chosen.step()
    chosen.zero_grad()
    before = [read_all(module) for module in modules.values()]
    for module in modules.values():
        module.train()(torch.arange(80)[None]).sum().backward()
    with pytest.raises(CapacityError, match=f"table '{refusing}' has 16 rows"):
        chosen.step()
    after = [read_all(module) for module in modules.values()]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


class FailingStorage(MemoryStorage):
    """Fails while it writes, when nothing can be rejected any more."""

    fails = False

    def _upsert_impl(self, *parts: Any) -> Any:
        if self.fails:
            raise StorageIOError("the disk is gone")
        return super()._upsert_impl(*parts)


@pytest.mark.parametrize("optimizer", ["sgd", torch.optim.SGD], ids=["fused", "native"])
def test_a_step_that_fails_between_device_and_host_reports_its_progress(
    optimizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FailingStorage(TableConfig("others", 4, initializer=Uniform(-0.05, 0.05)))
    module = EmbeddingBag(4, name="items", device="emulated")
    other = EmbeddingBag(4, name="others", storage=storage)
    chosen = Optimizer([module, other], optimizer, lr=0.1)

    def step() -> None:
        for each in (module, other):
            each.train()(torch.arange(9)[None]).sum().backward()
        chosen.step()
        chosen.zero_grad()

    step()
    before = read_all(module), read_all(other)
    storage.fails = True
    with pytest.raises(PartialStepError) as caught:
        step()
    assert caught.value.written == ("items",)
    assert caught.value.failed == ("others",)
    assert not torch.equal(read_all(module), before[0])
    storage.fails = False

    def fail(*_: Any, **__: Any) -> None:
        raise StorageIOError("the disk is gone")

    before = read_all(module), read_all(other)
    kernels = type(get_kernel_set("emulated"))
    monkeypatch.setattr(kernels, "update_tables", fail)
    monkeypatch.setattr(kernels, "upsert_storage", fail)
    with pytest.raises(StorageIOError, match="the disk is gone"):
        step()
    after = read_all(module), read_all(other)
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


class Descent(UpdateMethod):
    """A Python update method: tables on the CPU pass their rows to it."""

    name = "descent"
    hyperparameters = HyperParameters

    def state_width(self, dim: int) -> int:
        return 0

    def update(self, rows: UpdateRows, hyper: HyperParameters) -> None:
        rows.embeddings -= rows.gradients


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "by rows"])
def test_a_device_table_without_admitted_keys_is_not_named_as_changed(is_fused: bool) -> None:
    storage = FailingStorage(TableConfig("others", 4, initializer=Uniform(-0.05, 0.05)))
    refused = EmbeddingBag(4, name="refused", device="emulated", admission=Frequency(2))
    taken = EmbeddingBag(4, name="taken", device="emulated")
    other = EmbeddingBag(4, name="others", storage=storage)
    Optimizer([refused, taken, other], "sgd", lr=0.1)
    container = refused.agent.container
    sgd = resolve_method("sgd")
    fused = MethodChoice(sgd, parse_hyper(sgd, {"lr": 0.1}), 1)
    by_rows = MethodChoice(Descent(), HyperParameters(), 1)
    choices = {"refused": fused, "taken": fused, "others": fused if is_fused else by_rows}

    def step(first_id: int, *modules: EmbeddingBag) -> None:
        for each in modules:
            each(torch.arange(first_id, first_id + 9)[None]).sum().backward()
        container.apply_methods(choices)

    storage.fails = True
    with pytest.raises(PartialStepError) as caught:
        step(0, refused, taken, other)
    assert caught.value.written == ("taken",)
    assert container.counters.rows_updated == 9
    assert container.counters.gradients_not_admitted == 9
    with pytest.raises(StorageIOError, match="the disk is gone"):  # nothing has changed
        step(100, refused, other)
