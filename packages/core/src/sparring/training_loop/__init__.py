"""What `sparring train` does with any framework: reads data, steps, evaluates, reports.

    Source: batches, metrics        Trainer (a framework's): one step, predictions
                  └────────► run_training ◄────────┘

A framework's adapter brings a `Trainer` for each model of a configuration; all else is here.
"""

from __future__ import annotations

from sparring.training_loop.click_source import ClickSource
from sparring.training_loop.contract import Source, Trained, Trainer
from sparring.training_loop.loop import micro_batches, run_training
from sparring.training_loop.rating_source import RatingSource

__all__ = [
    "ClickSource",
    "RatingSource",
    "Source",
    "Trained",
    "Trainer",
    "micro_batches",
    "run_training",
]
