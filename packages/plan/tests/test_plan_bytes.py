"""Ranks send the bytes and messages that the simulation of their plan predicts, within 1 %."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import pytest

from sparring import ExchangeOptions, LocalGroup, StepContainer
from sparring.adapter import BagLookup, look_up_bags, parse_hyper, resolve_method
from sparring.contracts import Collective, MethodChoice, TableConfig
from sparring_cli import read_document
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration, PlanInputs
from sparring_plan.planning.plan import Plan
from sparring_plan.planning.planned_placement import make_placement
from sparring_plan.planning.planner import make_plan
from sparring_plan.simulation.traffic import compute_traffic
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

SAMPLES, CHUNK_ROWS = 1024, 512
TABLES = {"a": (16, 6), "b": (8, 3), "c": (32, 2)}
"""Table → dim, ids of a sample."""
ROW: Any = ("row_wise", "all", 1, "rows")


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as path:
        default = read_document(path).as_model(Calibration)
    exchange = default.exchange.model_copy(update={"chunk_rows": CHUNK_ROWS})
    return default.model_copy(update={"exchange": exchange})


def inputs_of(ranks: int, dtype: str) -> PlanInputs:
    return PlanInputs.model_validate(
        {
            "topology": {"nodes": 1, "ranks_per_node": ranks, "memory": {"host": 1 << 42}},
            "samples": SAMPLES,
            "kinds": ["row_wise", "data_parallel", "table_wise", "column_wise"],
            "transfers": ["rows", "pooled"],
            "tables": {
                name: {
                    "dim": dim,
                    "dtype": dtype,
                    "features": {"f": {"ids": ids}},
                    "rows": 10**9,
                    "skew": 0,
                }
                for name, (dim, ids) in TABLES.items()
            },
        }
    )


def planned(inputs: PlanInputs, calibration: Calibration, choices: dict[str, Any]) -> Plan:
    plan = make_plan(inputs, calibration)
    tables = {}
    for name, table in plan.tables.items():
        values = zip(("kind", "ranks", "columns", "transfer"), choices.get(name, ROW), strict=True)
        tables[name] = table.model_copy(update={**dict(values), "next_best": None})
    return plan.model_copy(update={"tables": tables})


def sent_by(collective: Collective, plan: Plan, dtype: str) -> list[int]:
    """Bytes of headers, keys, rows and gradients, and messages, of one step of a rank."""
    world_size = collective.world_size
    random = np.random.default_rng(collective.rank)
    method = resolve_method("sgd")
    choice = MethodChoice(method, parse_hyper(method, {"lr": 0.1}), 1)
    with StepContainer(
        collective=collective,
        rendezvous=ThreadRendezvous(world_size),
        exchange=ExchangeOptions(CHUNK_ROWS, 4),
        plan=plan.sharding(world_size),
    ) as container:
        batch = {}
        for name, (dim, ids) in TABLES.items():
            container.declare(TableConfig(name, dim, dtype))
            batch[name] = random.integers(0, 10**9, SAMPLES * ids)
        pooled = [name for name in TABLES if container.transfer(name)[0] == "pooled"]
        by_rows = [(name, ids) for name, ids in batch.items() if name not in pooled]
        for found in container.lookup_all(by_rows) if by_rows else ():
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        bags = [
            BagLookup(name, batch[name], np.arange(SAMPLES + 1) * TABLES[name][1])
            for name in pooled
        ]
        pools = look_up_bags(container.state, bags, is_training=True) if bags else []
        for each in pools:
            assert each.shadow_id is not None
            container.resources.accumulate_bags(each.shadow_id, np.ones_like(each.pools))
        container.apply_methods(dict.fromkeys(TABLES, choice))
        counters = container.exchange.counters
        sent = counters.wire_bytes_sent
        return [sent.headers, sent.keys, sent.rows, sent.gradients, counters.num_messages_sent]


@pytest.mark.parametrize(
    ("ranks", "dtype", "choices"),
    [
        (2, "float32", {}),
        (2, "int8", {}),
        (
            2,
            "float32",
            {"a": ("table_wise", [1], 1, "rows"), "b": ("data_parallel", "all", 1, "rows")},
        ),
        (
            3,
            "float32",
            {"a": ("row_wise", "all", 1, "pooled"), "c": ("table_wise", [0], 1, "pooled")},
        ),
        (2, "float32", dict.fromkeys(TABLES, ("row_wise", "all", 1, "pooled"))),
        (3, "float32", {"c": ("column_wise", [0, 2], 2, "rows")}),
        (2, "float32", dict.fromkeys(TABLES, ("data_parallel", "all", 1, "rows"))),
    ],
)
def test_ranks_send_the_predicted_bytes(
    ranks: int, dtype: str, choices: dict[str, Any], calibration: Calibration
) -> None:
    inputs = inputs_of(ranks, dtype)
    plan = planned(inputs, calibration, choices)
    placement = make_placement(plan, compute_option_costs(inputs, calibration))
    sent = compute_traffic(placement, inputs, calibration).sent
    group = LocalGroup(ranks)
    with ThreadPoolExecutor(ranks) as threads:
        found = list(threads.map(lambda rank: sent_by(group.join(rank), plan, dtype), range(ranks)))
    measured = np.asarray(found, np.float64)
    predicted = np.stack([sent.headers, sent.keys, sent.rows, sent.gradients, sent.messages], 1)
    # If a stream ends near the end of a chunk, the number of messages is off by one.
    np.testing.assert_allclose(predicted[:, :4].sum(1), measured[:, :4].sum(1), rtol=0.01)
    np.testing.assert_array_equal(predicted[:, 0], measured[:, 0])
    np.testing.assert_allclose(predicted[:, 1:4], measured[:, 1:4], rtol=0.03)
    np.testing.assert_allclose(predicted[:, 4], measured[:, 4], rtol=0.01, atol=2 * ranks)
