"""Two ranks whose tables share one device: messages are staged in host memory, and outputs and rows
equal the results of two ranks on the CPU.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparring import StepContainer
from sparring.contracts import Collective
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_torch.modules.embedding_bag import EmbeddingBag
from sparring_torch.optim.optimizer import Optimizer

from .emulated_ranks import run_ranks

CPU = torch.device("cpu")
WORLD_SIZE = 2


def trained(table: dict[str, Any], where: torch.device, optimizer: Any) -> list[Any]:
    """Returns outputs of all steps, on the host, and the number of rows of each rank."""

    def body(collective: Collective) -> Any:
        rendezvous = ThreadRendezvous(WORLD_SIZE)
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            module = EmbeddingBag(8, name="items", mode="sum", container=container, **table)
            steps = Optimizer(module, optimizer, lr=0.1)
            outputs = []
            for step in range(1, 5):
                generator = torch.Generator().manual_seed(10 * step + collective.rank)
                # One rank has more than the other, and both share some ids.
                ids = torch.randint(
                    0, 40 * step, (20 + 9 * collective.rank, 3), generator=generator
                )
                out = module(ids.to(where))
                out.sin().sum().backward()
                steps.step()
                steps.zero_grad()
                outputs.append(out.detach().cpu())
            return outputs, container.num_rows("items")

    return run_ranks("staged", WORLD_SIZE, body)


@pytest.mark.parametrize(
    "optimizer", ["rowwise_adagrad", torch.optim.Adam], ids=["fused", "native"]
)
def test_two_ranks_on_one_device_train_as_on_the_cpu(optimizer: Any, device_place: Any) -> None:
    name = device_place.name
    # Plain cuda is one GPU per rank if there are two.
    name = "cuda:0" if name == "cuda" else name
    where = torch.device("cpu" if name == "emulated" else name)
    expected = trained({}, CPU, optimizer)
    found = trained({"device": name}, where, optimizer)
    for (ours, count), (theirs, expected_count) in zip(found, expected, strict=True):
        assert all(map(device_place.agree, ours, theirs))
        assert count == expected_count
