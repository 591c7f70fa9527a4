"""Forked workers of torch's `DataLoader` inherit a container, but cannot use it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sparring import StepContainer, StorageChoice
from sparring.contracts import TableConfig
from sparring.errors import ClosedError
from sparring_torch import KeyedJaggedTensor

TABLE = TableConfig("films", 4)


class Batches(Dataset[torch.Tensor]):
    """Sparse features; `container` looks them up if given."""

    def __init__(self, container: StepContainer | None = None) -> None:
        self.container = container

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        ids = torch.arange(index, index + 3)
        if self.container is not None:
            self.container.lookup("films", ids.numpy())
        features = KeyedJaggedTensor.from_lengths_sync(
            keys=["film"], values=ids, lengths=torch.tensor([3])
        )
        return features.values() + torch.ones(3)


@pytest.fixture
def container(tmp_path: Path) -> StepContainer:
    tiers = [
        {"backend": "memory", "options": {"capacity": 50, "policy": "lru"}},
        {"backend": "memory", "options": {}},
    ]
    made = StepContainer()
    made.declare(TABLE, StorageChoice("tiered", {"tiers": tiers}))
    made.storage("films").upsert(np.arange(100), np.ones((100, 4), np.float32))
    return made


def loaded(dataset: Batches) -> list[torch.Tensor]:
    return list(DataLoader(dataset, num_workers=2, multiprocessing_context="fork", timeout=60))


def test_workers_without_tables_run_during_background_work(
    container: StepContainer, tmp_path: Path
) -> None:
    gate = threading.Event()
    with container:
        held = container.events.submit(lambda: gate.wait(60))
        saving = container.save(str(tmp_path / "saved"), blocking=False)
        container.prefetch([("films", np.arange(10))])
        batches = loaded(Batches())
        gate.set()
        assert [batch[0, 0].item() for batch in batches] == [1.0 + number for number in range(8)]
        assert held.result(60)
        assert saving.result(60).rows == {"films": 100}


def test_workers_that_look_up_get_an_error_with_the_fix(container: StepContainer) -> None:
    with container, pytest.raises(ClosedError, match="start workers with spawn"):
        loaded(Batches(container))


PROGRAM = """
import sys
import torch, torch.multiprocessing
from torch.utils.data import DataLoader, Dataset
import sparring_torch as st

class Candidates(Dataset):
    def __init__(self, items):
        self.items = items
    def __len__(self):
        return 2
    def __getitem__(self, index):
        return self.items.read_embeddings([index])

def check(_, model, path):
    rows = model[0].read_embeddings(range(4))
    try:
        for _ in range(2):
            model(torch.arange(4)).sum().backward()
    except st.misuse.InvalidArgumentError as error:
        torch.save((rows, str(error)), path)

if __name__ == "__main__":
    items = st.Embedding(4, name="items")
    model = torch.nn.Sequential(items, torch.nn.Linear(4, 1))
    optimizer = st.Optimizer(model, torch.optim.Adam, lr=0.1)
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    loader = DataLoader(Candidates(items), num_workers=1, multiprocessing_context="spawn")
    assert torch.equal(torch.cat(list(loader))[:, 0], items.read_embeddings([0, 1]))
    torch.multiprocessing.spawn(check, args=(model, sys.argv[1]), nprocs=1)
    rows, error = torch.load(sys.argv[1])
    assert torch.equal(rows, items.read_embeddings(range(4)))
    print(error)
"""


@pytest.mark.slow
def test_spawned_processes_read_a_copy_of_the_rows(tmp_path: Path) -> None:
    program = tmp_path / "spawns.py"  # spawned processes import the program by its name
    program.write_text(PROGRAM)
    run = subprocess.run(  # noqa: PLW1510 - the message contains stderr
        [sys.executable, str(program), str(tmp_path / "found")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "Optimizer" in run.stdout
