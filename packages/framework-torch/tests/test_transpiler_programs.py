"""Programs for one machine give the same results after `distribute`."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from sparring_torch import distribute, restore
from sparring_torch.modules.table_module import list_table_modules

from .transpiled_programs import PROGRAMS, optimizers_of, train


def check_same(found: nn.Module, expected: nn.Module, program: str = "") -> None:
    """Asserts that all weights are equal to 1e-6 of the largest of each."""
    theirs = dict(expected.named_parameters())
    ours = dict(found.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        difference = ((ours[name] - weight).abs().max() / weight.abs().max()).item()
        assert difference <= 1e-6, f"{program} {name}: {difference:.1e}"


def trained_on_two_ranks(
    folder: Path, script: str, names: Sequence[str]
) -> list[dict[str, dict[str, torch.Tensor]]]:
    """Runs a script with `torchrun`; returns the file that each rank saved as ``trained-RANK.pt``."""
    (folder / "script.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--local-addr", "127.0.0.1", "--nproc-per-node", "2", "script.py"]
    done = subprocess.run(
        [*torchrun, str(Path(__file__).parent), *names],
        check=False,  # the assertion below shows its output
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"trained-{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_the_program_gives_the_same_results(name: str) -> None:
    program = PROGRAMS[name]
    torch.manual_seed(5)
    original = program.model()
    model = copy.deepcopy(original)
    before = copy.deepcopy(original)
    train(program, original, optimizers_of(program.optimizer(original)))

    model, optimizer = distribute(model, program.optimizer(model))
    assert not any(isinstance(each, (nn.Embedding, nn.EmbeddingBag)) for each in model.modules())
    assert list_table_modules(model)
    train(program, model, optimizers_of(optimizer))
    restored = restore(model)

    check_same(restored, original)
    with pytest.raises(AssertionError):
        check_same(restored, before)


def test_collections_of_torchrec_give_the_same_results() -> None:
    pytest.importorskip("torchrec", reason="torchrec is not installed")
    from .transpiled_collections import Collections, batch

    torch.manual_seed(5)
    original = Collections()
    model = copy.deepcopy(original)
    theirs = torch.optim.Adagrad(original.parameters(), lr=0.1)
    model, ours = distribute(model, torch.optim.Adagrad(model.parameters(), lr=0.1))
    for each, optimizer in ((original, theirs), (model, ours)):
        generator = torch.Generator().manual_seed(7)
        for _ in range(20):
            features, target = batch(generator)
            optimizer.zero_grad()
            (each(features) - target).square().mean().backward()
            optimizer.step()
    assert len(ours.report.replaced) == 3
    check_same(restore(model), original)


ON_RANKS = [
    "adagrad",
    "SparseAdam and Adam",
    "shared embedding",
    "DLRM",
    "LSTM",
    "factorization machine",
    "accumulated gradients",
    "clipped gradients",
]

SCRIPT = """
import sys

import torch

from sparring_torch import distribute, restore

sys.path.insert(0, sys.argv[1])
from transpiled_programs import PROGRAMS, optimizers_of, train

torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
rank = torch.distributed.get_rank()
trained = {}
for name in sys.argv[2:]:
    torch.manual_seed(5 + rank)  # the weights of rank 0 count
    model = PROGRAMS[name].model()
    model, optimizer = distribute(model, PROGRAMS[name].optimizer(model))
    train(PROGRAMS[name], model, optimizers_of(optimizer), slice(4 * rank, 4 * rank + 4))
    container = model.container
    trained[name] = restore(model).state_dict()
    container.close()
torch.save(trained, f"trained-{rank}.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_two_ranks_give_the_results_of_the_program(tmp_path: Path) -> None:
    ranks = trained_on_two_ranks(tmp_path, SCRIPT, ON_RANKS)
    for name in ON_RANKS:
        program = PROGRAMS[name]
        torch.manual_seed(5)
        original = program.model()
        train(program, original, optimizers_of(program.optimizer(original)))
        for rank in range(2):
            restored = program.model()
            restored.load_state_dict(ranks[rank][name])
            check_same(restored, original, name)
