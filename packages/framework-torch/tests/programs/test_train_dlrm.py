"""The DLRM example for TorchRec's users has the same result on one rank and on two."""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PROGRAM = Path(__file__).parents[2] / "examples/train_dlrm.py"


def on_ranks(count: int) -> float:
    """Returns the log loss that the program prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    # The program uses a GPU if there is one, and the ranks would share it.
    limits = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    started = [
        subprocess.Popen(
            [sys.executable, PROGRAM],
            env={**os.environ, **job, **limits, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        told = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * count, told
    return float(told[0][0].split()[-1])


def test_one_rank_and_two_have_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    alone = runpy.run_path(str(PROGRAM))["train"]()
    assert alone < 0.35
    assert on_ranks(2) == pytest.approx(alone, rel=1e-4)
