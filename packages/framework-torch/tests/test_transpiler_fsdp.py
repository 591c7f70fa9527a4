"""`distribute(…, dense="fsdp2")`: ordinary parameters are sharded over ranks by torch's FSDP2."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_torch import DistributedModelParallel, distribute, distribution_report

from .test_transpiler import Small, sgd
from .test_transpiler_programs import check_same, trained_on_two_ranks
from .transpiled_programs import PROGRAMS, optimizers_of, train

pytest.importorskip("torch.distributed.tensor", reason="FSDP2 requires torch 2.6")

NAMES = ["adagrad", "SparseAdam and Adam", "DLRM", "accumulated gradients", "clipped gradients"]

SCRIPT = """
import sys

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from sparring_torch import distribute, gather_state, restore, restore_state

sys.path.insert(0, sys.argv[1])
from transpiled_programs import PROGRAMS, optimizers_of, train

torch.distributed.init_process_group("gloo")
torch.set_num_threads(1)
rank = torch.distributed.get_rank()
mine = slice(4 * rank, 4 * rank + 4)
trained = {}
for name in sys.argv[2:]:
    torch.manual_seed(5 + rank)  # the weights of rank 0 count
    model = PROGRAMS[name].model()
    kinds = {path: type(each) for path, each in model.named_modules()}
    model, optimizer = distribute(model, PROGRAMS[name].optimizer(model), dense="fsdp2")
    optimizers = optimizers_of(optimizer)
    cut = [each for each in model.parameters() if isinstance(each, DTensor)]
    assert cut
    if name == "DLRM":
        own = sum(each.to_local().numel() for each in cut)
        assert own < 0.6 * sum(each.numel() for each in cut)
    train(PROGRAMS[name], model, optimizers, mine)
    with torch.no_grad():  # gathers, and frees
        model(*PROGRAMS[name].batch(torch.Generator().manual_seed(0)))
    assert all(isinstance(each, DTensor) for each in cut)
    state = [each for one in optimizers for held in one.state.values() for each in held.values()]
    assert not state or any(isinstance(each, DTensor) for each in state)
    saved = gather_state(model=model, optimizer=optimizers[-1])
    with torch.no_grad():
        for each in (*cut, *(each for each in state if isinstance(each, DTensor))):
            each.zero_()
    restore_state(saved, model=model, optimizer=optimizers[-1])
    train(PROGRAMS[name], model, optimizers, mine)
    container = model.container
    plain = restore(model)
    assert {path: type(each) for path, each in plain.named_modules()} == kinds
    trained[name] = plain.state_dict()
    assert not any(isinstance(each, DTensor) for each in trained[name].values())
    container.close()
torch.save(trained, f"trained-{rank}.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.long
def test_two_ranks_that_share_parameters_give_the_results_of_the_program(tmp_path: Path) -> None:
    ranks = trained_on_two_ranks(tmp_path, SCRIPT, NAMES)
    for name in NAMES:
        program = PROGRAMS[name]
        torch.manual_seed(5)
        original = program.model()
        optimizers = optimizers_of(program.optimizer(original))
        for _ in range(2):
            train(program, original, optimizers)
        for rank in range(2):
            restored = program.model()
            restored.load_state_dict(ranks[rank][name])
            check_same(restored, original, name)


def test_one_rank_keeps_ordinary_parameters() -> None:
    model = Small()
    model, optimizer = distribute(model, sgd(model), dense="fsdp2")
    assert type(model) is Small
    assert optimizer.report.modules[-1].reason == "ordinary parameters, FSDP2 on many ranks"


def test_a_parameter_without_dimensions_is_rejected() -> None:
    model = Small()
    model.scale = nn.Parameter(torch.tensor(1.0))
    report = distribution_report(model, sgd(model), dense="fsdp2")
    assert [each.path for each in report.unsupported] == ["model"]
    with pytest.raises(UnsupportedError, match="no parameter without dimensions: scale"):
        distribute(model, sgd(model), dense="fsdp2")
    with pytest.raises(UnsupportedError, match="parameter scale has no dimensions"):
        DistributedModelParallel(model, dense="fsdp2")


def test_unsupported_combinations_are_rejected(tmp_path: Path) -> None:
    model = Small()
    with pytest.raises(InvalidArgumentError, match="found 'fsdp', expected 'ddp' or 'fsdp2'"):
        distribute(model, sgd(model), dense="fsdp")
    with pytest.raises(InvalidArgumentError, match="all ranks must use the same parameters"):
        distribute(model, sgd(model), dense="fsdp2", find_unused_parameters=True)
    with pytest.raises(InvalidArgumentError, match="trainers of a service have no ranks"):
        distribute(model, sgd(model), dense="fsdp2", service=tmp_path / "serving.yaml")
    assert isinstance(model.words, nn.Embedding)
