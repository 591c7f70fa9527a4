"""Stacks whose first tier is on a device train bit-identically to a plain table on the CPU, and rows of
the first tier do not visit the host.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparring import Frequency
from sparring.adapter import DeviceGradients
from sparring.errors import DeviceMemoryError
from sparring_hkv.devices import open_device
from sparring_tiered import TieredStorage
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

from .device_bags import two_tiers

CPU = torch.device("cpu")
NUM_IDS = 400
NUM_STEPS = 6


def bags(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 100 + 60 * step, (50, 3), generator=generator) % NUM_IDS
    ids[0] = torch.tensor([-1, 2**63 - 1, -(2**63)])
    return ids


def trained(
    storage: Any,
    optimizer: Any,
    where: torch.device = CPU,
    *,
    dtype: torch.dtype = torch.float32,
    admission: Any = None,
) -> tuple[list[Tensor], Tensor, int, EmbeddingBag]:
    """Returns outputs of all steps, all embeddings afterwards, and the number of rows."""
    module = EmbeddingBag(
        8, name="items", mode="sum", storage=storage, dtype=dtype, admission=admission
    )
    steps = Optimizer(module, optimizer, lr=0.1)
    outputs = []
    for step in range(1, NUM_STEPS + 1):
        out = module(bags(step).to(where))
        (out.float().sin() * (1 + torch.arange(8, device=where))).sum().backward()
        steps.step()
        steps.zero_grad()
        outputs.append(out.detach())
    with torch.no_grad():
        rows = module.eval()(torch.arange(-1, NUM_IDS, device=where)[:, None])
    return outputs, rows, module.num_rows()["items"], module


@pytest.fixture
def _no_way_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def summed(self: DeviceGradients, view: Any) -> Any:
        raise AssertionError("gradients of tables on a device came to the host")

    monkeypatch.setattr(DeviceGradients, "summed", summed)


@pytest.mark.usefixtures("_no_way_by_the_host")
@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({}, "rowwise_adagrad"),
        ({"promote": "never"}, torch.optim.Adam),
        ({"promote": "second_touch"}, "rowwise_adagrad"),
        ({"write": "through"}, torch.optim.Adam),
        ({"capacity": 20}, "rowwise_adagrad"),
        ({"capacity": 20}, torch.optim.Adam),
    ],
    ids=str,
)
def test_training_has_the_bits_of_a_plain_table(
    options: dict[str, Any], optimizer: Any, device_place: Any
) -> None:
    storage = two_tiers(device_place.name, **{"capacity": 128} | options)
    outputs, rows, count, module = trained(storage, optimizer, device_place.device)
    expected, expected_rows, expected_count, _ = trained("hkv", optimizer)
    assert all(map(device_place.agree, outputs, expected))
    assert device_place.agree(rows, expected_rows)
    assert count == expected_count
    stack = module.agent.container.storage("items")
    assert isinstance(stack, TieredStorage)
    first, second = stack.tier_counters()
    assert first.hits > 0, "the first tier was never asked"
    assert second.hits > 0, "nothing ever lay below"
    assert first.evictions > 0
    assert first.read_seconds > 0, "reads on the device took no time"
    assert first.write_seconds > 0, "nor did updates"


@pytest.mark.usefixtures("_no_way_by_the_host")
@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    [
        ("adam", torch.float64),
        (torch.optim.Adagrad, torch.bfloat16),
        ("adam", torch.float16),
        (torch.optim.Adagrad, torch.float64),
    ],
)
def test_rows_of_every_dtype_come_up_whole(
    optimizer: Any, dtype: torch.dtype, device_place: Any
) -> None:
    storage = two_tiers(device_place.name, 128)
    outputs, rows, count, _ = trained(storage, optimizer, device_place.device, dtype=dtype)
    expected, expected_rows, expected_count, _ = trained("hkv", optimizer, dtype=dtype)
    assert all(map(device_place.agree, outputs, expected))
    assert device_place.agree(rows, expected_rows)
    assert count == expected_count


@pytest.mark.usefixtures("_no_way_by_the_host")
@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", torch.optim.Adagrad])
def test_ids_that_are_not_admitted_get_no_row_in_any_tier(
    optimizer: Any, device_place: Any
) -> None:
    admission = Frequency(2)
    outputs, rows, count, _ = trained(
        two_tiers(device_place.name, 128), optimizer, device_place.device, admission=admission
    )
    expected, expected_rows, expected_count, _ = trained("hkv", optimizer, admission=admission)
    assert all(map(device_place.agree, outputs, expected))
    assert device_place.agree(rows, expected_rows)
    assert 0 < count == expected_count < NUM_IDS


def test_a_lookup_served_by_the_first_tier_does_not_use_the_lower_one(device_place: Any) -> None:
    storage = two_tiers(device_place.name, 4096)
    module = trained(storage, "sgd", device_place.device)[3]
    stack = module.agent.container.storage("items")
    assert isinstance(stack, TieredStorage)
    before = stack.tier_counters()[1].hits
    with torch.no_grad():
        module(bags(NUM_STEPS).to(device_place.device))
    assert stack.tier_counters()[1].hits == before


@pytest.mark.parametrize("optimizer", ["sgd", torch.optim.SGD])
def test_a_step_without_memory_on_the_device_changes_no_row_in_any_tier(
    optimizer: Any, device_place: Any
) -> None:
    if device_place.name != "emulated":
        pytest.skip("only the emulator can be made to refuse memory")
    module = EmbeddingBag(8, name="items", mode="sum", storage=two_tiers(device_place.name, 128))
    steps = Optimizer(module, optimizer, lr=0.1)

    def read() -> Tensor:
        with torch.no_grad():
            return module.eval()(torch.arange(NUM_IDS)[:, None])

    for step in range(1, 4):
        module.train()(bags(step)).sum().backward()
        steps.step()
        steps.zero_grad()
    device = open_device("emulated").handle
    num_refused = 0
    for allocation in range(200):
        before = read()
        module.train()(bags(allocation % 5)).sum().backward()
        device.fail_from(allocation)
        try:
            steps.step()
            steps.zero_grad()
        except DeviceMemoryError:
            num_refused += 1
        else:
            break
        finally:
            device.fail_from(-1)
        assert torch.equal(read(), before), f"allocation {allocation} of the step failed"
    assert num_refused > 5
    assert not torch.equal(read(), before), "it goes on once there is memory"
