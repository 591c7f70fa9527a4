"""SIGTERM ends a run after a step, on all ranks, and `--resume` continues it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed; see nox -s tests")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from sparring import latest_snapshot
from sparring_cli.application import main
from sparring_testing.fixtures.runs import snapshot_contents
from sparring_train.cli import train as train_command
from sparring_train.loop import loop
from sparring_train.registered_kinds import find_trainer
from sparring_train.run.result import SilentProgress
from sparring_train.run.termination import note_sigterm

from ..config.config_runs import CLICKS as SMALL_CLICKS
from ..config.config_runs import Runs
from .test_training_on_ranks import TORCHRUN

CLICKS = """
seed: 1
threads: 1
data: {kind: synthetic_criteo, samples: 400, test_samples: 60, batch_size: 40, max_ids: 100}
model: {kind: dlrm, embedding_dim: 2, bottom_mlp: [4], top_mlp: [4]}
optimizer: {sparse: {name: adam, lr: 0.01}}
"""


class Calling(SilentProgress):
    """Calls a function after a step."""

    def __init__(self, at: int, call: Callable[[], Any]) -> None:
        self._at, self._call = at, call
        self.messages: list[str] = []

    def on_step(self, step: int, loss: float, samples: int) -> None:
        if step == self._at:
            self._call()

    def on_message(self, message: str) -> None:
        self.messages.append(message)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Calling]:
    """Progress of `sparring train` in a folder with `run.yaml`: step 4 receives SIGTERM."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CLICKS)
    progress = Calling(4, terminate)
    with monkeypatch.context() as patch:
        patch.setattr(train_command, "make_progress", lambda *_, **__: progress)
        yield progress


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["training.pipeline=true", "data.validation_samples=60", "snapshots.every_steps=5",
         "training.evaluation_interval_steps=5"],
    ],
    ids=["plain", "prefetch, save and validation after the last step"],
)  # fmt: skip
def test_a_terminated_run_is_saved_and_resumes_with_the_same_bits(
    stopped: Calling, more: list[str]
) -> None:
    # The signal arrives after the exchange of step 4, so that step 5 is the last one.
    assert main(["train", "run.yaml", "snapshots.url=parts", *more]) == 143
    saved = latest_snapshot("parts")
    assert saved is not None
    assert saved.step == 5
    (message,) = [each for each in stopped.messages if "SIGTERM" in each]
    assert "after step 5" in message
    assert f"{saved.url}; continue with --resume" in message
    assert main(["train", "run.yaml", "snapshots.url=parts", "--resume", *more]) == 0
    stopped._at = -1
    assert main(["train", "run.yaml", "snapshots.url=whole", *more]) == 0
    assert snapshot_contents(Path("parts")) == snapshot_contents(Path("whole"))


def test_without_a_folder_a_terminated_run_says_that_nothing_was_saved(stopped: Calling) -> None:
    assert main(["train", "run.yaml"]) == 143
    assert stopped.messages[-1] == (
        "stopped by SIGTERM after step 5; nothing was saved, because snapshots.url is null; set it, so "
        "that --resume can continue"
    )


def test_only_the_first_sigterm_during_a_run_does_not_end_the_process() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with note_sigterm() as stop:
        assert not stop.is_set()
        assert signal.getsignal(signal.SIGTERM) is not before
        terminate()
        assert stop.is_set()
        assert signal.getsignal(signal.SIGTERM) is before
    with note_sigterm() as stop:
        assert not stop.is_set()
    assert signal.getsignal(signal.SIGTERM) is before


def test_all_ranks_stop_after_the_step_in_which_one_rank_received_sigterm(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: dict[threading.Thread, threading.Event] = {}

    @contextmanager
    def note() -> Iterator[threading.Event]:
        yield events.setdefault(threading.current_thread(), threading.Event())

    monkeypatch.setattr(loop, "note_sigterm", note)

    def train(rank: int) -> Any:
        chosen = runs.config(
            SMALL_CLICKS,
            "collective.backend=threads",
            f"rendezvous={{backend: threads, options: {{rank: {rank}, world_size: 2}}}}",
            "snapshots.url=ended",
            "training.epochs=3",
        )
        # Only the first rank receives progress. It sets the event of the other rank, which may already
        # have sent its part of step 4.
        own = threading.current_thread()
        progress = Calling(3, lambda: [events[each].set() for each in events if each is not own])
        return find_trainer("torch", runs.manager).train(chosen, runs.manager, progress)

    with ThreadPoolExecutor(2) as threads:
        results = list(threads.map(train, range(2)))
    assert len(events) == 2
    saved = latest_snapshot("ended")
    assert saved is not None
    assert saved.step in {4, 5}
    assert saved.world_size == 2
    assert [(each.steps, each.is_terminated) for each in results] == [(saved.step, True)] * 2


@pytest.mark.long
def test_torchrun_forwards_sigterm_and_its_ranks_save(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(CLICKS)
    command = [*TORCHRUN, "--nproc-per-node", "2", "-m", "sparring", "train", "run.yaml"]
    often = ["training.epochs=100000", "training.log_interval_seconds=1.0e-9"]
    with subprocess.Popen(
        [*command, "snapshots.url=saved", *often], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stderr is not None
        told = []
        for line in job.stderr:
            told.append(line)
            if line.startswith("step 20 "):
                job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=60) != 0
    (message,) = [each for each in told if "stopped by SIGTERM" in each]
    saved = latest_snapshot(str(tmp_path / "saved"))
    assert saved is not None
    assert saved.world_size == 2
    assert f"after step {saved.step:,}; its snapshot is" in message
