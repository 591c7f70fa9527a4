"""Hyper-parameters are compared between ranks, also values that JSON does not support."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ConfigDict

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.updates import MethodChoice, UpdateMethod
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import SparringError
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor


class NamedScale(Scale):
    def __repr__(self) -> str:
        return f"NamedScale({self.factor})"


class ScaledHyper(HyperParameters):
    model_config = ConfigDict(arbitrary_types_allowed=True)

    scale: Scale


class ScaledMethod(UpdateMethod):
    name, hyperparameters, couples_columns = "scaled", ScaledHyper, False

    def state_width(self, dim: int) -> int:
        return 0

    def update(self, rows: Any, hyper: Any) -> None:
        rows.embeddings[:] -= hyper.scale.factor * rows.gradients


def step_with(scales: list[Scale]) -> list[np.ndarray]:
    def body(collective: Collective) -> Any:
        made = StepContainer(
            collective=collective, rendezvous=ThreadRendezvous(collective.world_size)
        )
        made.declare(TableConfig("item", 2, initializer="zeros"))
        method = ScaledMethod()
        made.set_state("item", np.empty(0, np.float32), method.name)
        found = made.lookup("item", np.arange(4))
        assert found.shadow_id is not None
        made.resources.accumulate(found.shadow_id, np.ones((len(found.keys), 2), np.float32))
        hyper = ScaledHyper(scale=scales[collective.rank])
        made.apply_methods({"item": MethodChoice(method, hyper, 1)})
        return made.lookup("item", np.arange(4)).rows

    return run_ranks(len(scales), body)


@pytest.mark.parametrize("kind", [Scale, NamedScale])
def test_equal_hyperparameters_that_json_does_not_support_train(kind: type[Scale]) -> None:
    for rows in step_with([kind(0.5), kind(0.5)]):
        assert (rows == rows.flat[0]).all()
        assert rows.flat[0] < 0


def test_different_hyperparameters_that_json_does_not_support_are_rejected() -> None:
    with pytest.raises(SparringError, match=r"NamedScale\(0\.5\)"):
        step_with([NamedScale(0.5), NamedScale(0.25)])
