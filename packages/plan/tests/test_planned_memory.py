"""Memory of ranks that trained, compared with the prediction of their plan."""

from __future__ import annotations

from importlib.resources import as_file, files

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice
from sparring.adapter import parse_hyper, resolve_method
from sparring.contracts import Collective, MethodChoice, TableConfig
from sparring_cli import read_document
from sparring_plan.planning.inputs import Calibration, PlanInputs
from sparring_plan.planning.planner import make_plan
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

_NUM_ROWS, _STEP_KEYS = 60_000, 2_000
_RANKS = 2


@pytest.mark.parametrize("kind", ["row_wise", "table_wise", "data_parallel"])
@pytest.mark.parametrize("method", ["adam", "rowwise_adagrad"])
def test_bytes_of_trained_ranks_equal_the_plan(kind: str, method: str) -> None:
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as path:
        calibration = read_document(path).as_model(Calibration)
    table = {"dim": 16, "method": method, "rows": _NUM_ROWS, "features": {"f": {"ids": 1}}}
    topology = {"nodes": 1, "ranks_per_node": _RANKS, "memory": {"host": "1 GiB"}}
    inputs = PlanInputs.model_validate(
        # So few samples that the memory of a batch is negligible compared to the table.
        {"topology": topology, "samples": 16, "kinds": [kind], "tables": {"films": table}}
    )
    plan = make_plan(inputs, calibration)
    chosen = resolve_method(method)
    choice = MethodChoice(chosen, parse_hyper(chosen, {"lr": 0.01}), 1)

    def train(collective: Collective) -> int:
        with StepContainer(
            collective=collective,
            rendezvous=ThreadRendezvous(_RANKS),
            plan=plan.sharding(_RANKS),
        ) as container:
            container.declare(TableConfig("films", 16), StorageChoice("hkv"))
            container.set_state("films", np.zeros(chosen.state_width(16), np.float32), method)
            for begin in range(0, _NUM_ROWS, _STEP_KEYS * _RANKS):
                first = begin + _STEP_KEYS * collective.rank
                found = container.lookup("films", np.arange(first, first + _STEP_KEYS))
                assert found.shadow_id is not None
                container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
                container.apply_methods({"films": choice})
            return container.table_bytes("films")

    assert plan.tables["films"].bytes == pytest.approx(max(run_ranks(_RANKS, train)), rel=0.1)
