"""The DLRM example for TorchRec's users has the same result on one rank and on two."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from ..forked_ranks import run_forked_ranks

PROGRAM = Path(__file__).parents[2] / "examples/train_dlrm.py"


def test_one_rank_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runpy.run_path(str(PROGRAM))["train"]() < 0.35


@pytest.mark.slow  # the ranks are processes that import torch
def test_one_rank_and_two_have_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    alone = runpy.run_path(str(PROGRAM))["train"]()
    assert float(run_forked_ranks(PROGRAM, 2).split()[-1]) == pytest.approx(alone, rel=1e-4)
