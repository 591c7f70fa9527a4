"""A rank of `elastic_training`: `sparring train`, which also writes the times of its phases to a file.

    python -m reliability.elastic_rank FOLDER [sparring train's arguments …]

Without further arguments the rank imports nothing and waits: this is the least time that torchrun needs.
With the argument `torch` it creates an optimizer first: this is the least time of any script.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

_STEP_SECONDS = 0.02
"""Minimum duration of a step, so that every event happens during the training."""


class Notes:
    """Appends events to the file of this process."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{time.time():.3f}-{os.getpid()}.jsonl"
        self._fixed = {
            "rank": int(os.environ["RANK"]),
            "ranks": int(os.environ["WORLD_SIZE"]),
            "node": os.environ["SPARRING_NODE"],
            "pid": os.getpid(),
        }

    def add(self, event: str, **values: Any) -> None:
        entry = {"time": time.time(), "event": event, **self._fixed, **values}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def main(arguments: list[str]) -> int:
    """Trains, and returns the exit code of `sparring train`."""
    notes = Notes(Path(arguments[0]))
    notes.add("started")
    if arguments[1:] in ([], ["torch"]):
        if arguments[1:]:
            import torch

            torch.optim.Adagrad(torch.nn.Linear(1, 1).parameters())
        notes.add("waits")
        while True:
            time.sleep(60)
    thresholds = gc.get_threshold()
    gc.set_threshold(10_000)  # as `sparring train` does
    # The modules that `sparring train` imports later, so that their import is one phase.
    import sparring_torch
    import sparring_train.pytorch.trainer
    from sparring import StepContainer
    from sparring_cli.application import main as run_command
    from sparring_train.cli import train as command
    from sparring_train.run.result import SilentProgress

    gc.set_threshold(*thresholds)

    class Progress(SilentProgress):
        """Notes the start, and each step."""

        def on_start(self, total_steps: int | None) -> None:
            notes.add("joined")

        def on_step(self, step: int, loss: float, samples: int) -> None:
            notes.add("step", step=step)
            time.sleep(_STEP_SECONDS)

        def on_message(self, message: str) -> None:
            notes.add("message", text=message)

        def on_snapshot(self, step: int, url: str) -> None:
            notes.add("saved", step=step)

    load = StepContainer.load

    def load_and_note(self: StepContainer, *given: Any, **options: Any) -> Any:
        notes.add("loading")
        loaded = load(self, *given, **options)
        notes.add("loaded")
        return loaded

    StepContainer.load = load_and_note  # type: ignore[method-assign]
    vars(command)["make_progress"] = lambda *_, **__: Progress()
    notes.add("imported", modules=[sparring_torch.__name__, sparring_train.__name__])
    code = run_command(arguments[1:])
    notes.add("ended", code=code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
