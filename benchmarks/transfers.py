"""The gain of owner pooling: bytes and time of a step whose bags are sent as rows, and as pools.

Two ranks with bags of 20 ids that seldom repeat, from a table that one or both of them own.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from benchmarks.shaped_links import ShapedGroup, run_ranks
from sparring import StepContainer
from sparring.adapter import BagLookup, look_up_bags, pool, pool_backward
from sparring.contracts import Collective, MethodChoice, TableConfig, TableSharding
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

__all__ = ["measure"]

DIM, NUM_BAGS, IDS_A_BAG, ROUNDS = 64, 2_048, 20, 5
NUM_STEPS = 4
LINKS = {"1 Gbit/s": 125e6, "links of negligible cost": 20e9}
KINDS = {"table_wise": (1,), "row_wise": ()}
BYTES_BAR = 2.0


def measure(scale: Scale) -> list[Figure]:
    """Measures bytes, and the median step of the slower rank."""
    num_bags, figures = scale.rows(NUM_BAGS), []
    for kind in KINDS:
        for link, speed in LINKS.items():
            seconds: dict[str, list[float]] = {"rows": [], "pooled": []}
            num_bytes, pools = dict[str, float](), dict[str, Any]()
            for _ in range(scale.rounds(ROUNDS)):
                for transfer, found in seconds.items():
                    group = ShapedGroup(2, speed)
                    results = run_ranks(group, lambda c: _train(c, kind, transfer, num_bags))  # noqa: B023 - called at once
                    found.append(max(each[0] for each in results))
                    num_bytes[transfer] = float(sum(each[1] for each in results))
                    pools[transfer] = [each[2] for each in results]
            np.testing.assert_allclose(pools["pooled"], pools["rows"], rtol=0, atol=1e-5)
            times = {transfer: median(each) for transfer, each in seconds.items()}
            ratio = times["rows"] / times["pooled"]
            figures.append(
                Figure(
                    what=f"{kind}, {IDS_A_BAG} ids per bag x {DIM}, 2 ranks, {link}: a step",
                    value=f"{ratio:.2f} x as fast as by rows",
                    detail=", ".join(f"{k} {v * 1e3:.1f} ms" for k, v in times.items()),
                    ratio=ratio,
                )
            )
        fewer = num_bytes["rows"] / num_bytes["pooled"]
        figures.append(
            Figure(
                what=f"{kind}, {IDS_A_BAG} ids per bag x {DIM}, 2 ranks: bytes of a step",
                value=f"{fewer:.1f} x fewer than by rows",
                bar=f">= {BYTES_BAR}" if kind == "table_wise" else None,
                is_reached=fewer >= BYTES_BAR if kind == "table_wise" else None,
                detail=", ".join(f"{k} {v / 1e6:.2f} MB" for k, v in num_bytes.items()),
                ratio=fewer,
            )
        )
    return figures


def _train(
    collective: Collective, kind: str, transfer: Any, num_bags: int
) -> tuple[float, float, Any]:
    """Returns the seconds and bytes of a step, and the pools of the last one."""
    plan = {"item": TableSharding(kind, KINDS[kind], transfer=transfer)}
    random = np.random.default_rng(collective.rank)
    offsets = np.arange(num_bags + 1, dtype=np.int64) * IDS_A_BAG
    gradient = random.standard_normal((num_bags, DIM)).astype(np.float32)
    batches = [random.integers(0, 1 << 40, offsets[-1]) for _ in range(NUM_STEPS)]
    method = resolve_method("sgd")
    choices = {"item": MethodChoice(method, parse_hyper(method, {"lr": 0.01}), 1)}
    with StepContainer(
        collective=collective, rendezvous=ThreadRendezvous(2), plan=plan
    ) as container:
        container.declare(TableConfig("item", DIM))
        seconds = []
        for ids in batches:
            sent = container.exchange.counters.wire_bytes_sent.total
            collective.barrier()
            begin = time.perf_counter()
            if transfer == "pooled":
                wanted = [BagLookup("item", ids, offsets)]
                (bags,) = look_up_bags(container.state, wanted, is_training=True)
                pools = bags.pools
                assert bags.shadow_id is not None
                container.resources.accumulate_bags(bags.shadow_id, gradient)
            else:
                found = container.lookup("item", ids)
                pools = pool(found.rows, found.inverse, offsets, "sum")
                by_key = pool_backward(gradient, found.inverse, offsets, len(found.keys), "sum")
                assert found.shadow_id is not None
                container.resources.accumulate(found.shadow_id, by_key)
            container.apply_methods(choices)
            seconds.append(time.perf_counter() - begin)
            num_bytes = container.exchange.counters.wire_bytes_sent.total - sent
        return median(seconds[1:]), num_bytes, pools
