"""No plan is below a bound, and searches are close to it."""

from __future__ import annotations

from fractions import Fraction
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import pytest

from sparring_cli import read_document
from sparring_plan.planning.costs.costs import Options, compute_option_costs
from sparring_plan.planning.inputs import Calibration
from sparring_plan.planning.search import bound as bound_module
from sparring_plan.planning.search.bound import (
    compute_aggregate_bound,
    compute_linear_bound,
    compute_threshold_bound,
    highs,
)
from sparring_plan.planning.search.exact import prove
from sparring_plan.planning.search.placement import place_all
from sparring_plan.planning.search.pruning import reduce_options
from sparring_plan.planning.search.search import search

from .brute_force import best_by_brute_force, random_inputs


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    with as_file(files("sparring_plan.planning") / "calibration.yaml") as path:
        return read_document(path).as_model(Calibration)


@pytest.mark.parametrize("with_highs", [False, True], ids=["numpy", "highs"])
def test_bound_best_and_plan_are_in_ascending_order(
    with_highs: bool, calibration: Calibration, monkeypatch: pytest.MonkeyPatch
) -> None:
    if with_highs and highs() is None:
        pytest.skip("needs the extra highspy")
    if not with_highs:
        monkeypatch.setattr(bound_module, "highs", lambda: None)
        monkeypatch.setattr("sparring_plan.planning.search.exact.highs", lambda: None)
    ratios = []
    for seed in range(24):
        options = compute_option_costs(random_inputs(seed), calibration)
        best, found = best_by_brute_force(options), search(options)
        if best is None:
            assert found is None, f"case {seed}: nothing fits"
            continue
        assert found is not None, f"case {seed}: something fits"
        assert found.placement.fits
        assert found.placement.is_complete
        assert max(found.bound.seconds, found.bound_seconds) <= best * (1 + 1e-9), f"case {seed}"
        assert best <= found.placement.seconds * (1 + 1e-9), f"case {seed}"
        ratios.append(found.placement.seconds / best)
    assert len(ratios) >= 20
    assert np.median(ratios) < 1.01
    assert max(ratios) < (1.02 if with_highs else 1.25)


def test_linear_bound_is_at_least_the_numpy_bound(calibration: Calibration) -> None:
    if highs() is None:
        pytest.skip("needs the extra highspy")
    for seed in range(6):
        options = compute_option_costs(random_inputs(seed), calibration)
        lagrangian = compute_aggregate_bound(options)
        linear = compute_linear_bound(options, lagrangian)
        assert linear is None or linear.seconds >= lagrangian.seconds


def test_integer_programme_finds_the_best_and_bounds_it(calibration: Calibration) -> None:
    if highs() is None:
        pytest.skip("needs the extra highspy")
    for seed in (1, 2, 6, 9, 10):
        options = compute_option_costs(random_inputs(seed), calibration)
        best = best_by_brute_force(options)
        start = place_all(options, options.start[:-1])
        assert best is not None
        assert start is not None
        proof = prove(options, start, np.arange(len(options)), 12_000)
        assert proof is not None
        found, bound = proof
        assert bound <= best * (1 + 1e-9)
        assert found.seconds == pytest.approx(best, rel=2e-3)
        assert bound == pytest.approx(best, rel=2e-3)


def test_threshold_bound_is_at_most_the_best_plan(calibration: Calibration) -> None:
    if highs() is None:
        pytest.skip("needs the extra highspy")
    tried = raised = 0
    for seed in range(24):
        options = compute_option_costs(random_inputs(seed), calibration)
        best, reduced = best_by_brute_force(options), reduce_options(options)
        if best is None or reduced is None:
            continue
        lower = compute_aggregate_bound(reduced.options).seconds
        bound = compute_threshold_bound(reduced.options, lower, best * 1.5)
        assert lower <= bound <= best * (1 + 1e-9), f"case {seed}"
        tried += 1
        raised += bound > lower * 1.05
    assert tried >= 20
    assert raised >= 3


def test_reduction_keeps_the_best_plan(calibration: Calibration) -> None:
    fewer = 0
    for seed in range(24):
        options = compute_option_costs(random_inputs(seed), calibration)
        best, reduced = best_by_brute_force(options), reduce_options(options)
        if reduced is None:
            assert best is None, f"case {seed}"
            continue
        fewer += len(reduced.options) < len(options)
        found = best_by_brute_force(reduced.options)
        assert (found is None) == (best is None), f"case {seed}"
        assert best is None or found == pytest.approx(best, rel=1e-9), f"case {seed}"
    assert fewer >= 3


def exact_bound(options: Options, prices: Any, memory_prices: Any) -> Fraction:
    """Returns the Lagrangian bound of these prices in exact arithmetic.

    The explanation contains its formula.
    """
    ranks = options.num_ranks
    each = [Fraction(float(price)) for price in prices]
    of_byte = [Fraction(float(price)) for price in memory_prices]
    total = sum(each)
    bound = sum(
        price * Fraction(float(fixed)) for price, fixed in zip(each, options.fixed, strict=True)
    )
    bound -= total * sum(
        price * Fraction(float(capacity))
        for price, capacity in zip(of_byte, options.capacity, strict=True)
    )
    for table in range(len(options.table_names)):
        costs = []
        for option in options.of(table):
            shape = options.shape_of(option)
            owners = Fraction(0 if shape.span == 0 else shape.num_shards, ranks)
            cost = Fraction(0)
            for price, base, shard in zip(
                each, options.base[option], options.shard[option], strict=True
            ):
                cost += price * (Fraction(float(base)) + owners * Fraction(float(shard)))
            for price, base, shard in zip(
                of_byte, options.base_memory[option], options.shard_memory[option], strict=True
            ):
                cost += total * price * (Fraction(float(base)) + owners * Fraction(float(shard)))
            costs.append(cost)
        bound += min(costs)
    return bound / total


def test_numpy_bound_is_proven_by_its_prices_in_exact_arithmetic(
    calibration: Calibration,
) -> None:
    for seed in range(24):
        options = compute_option_costs(random_inputs(seed), calibration)
        bound = compute_aggregate_bound(options)
        alone = (options.base + options.shard + options.fixed).max(axis=1)
        largest = float(np.minimum.reduceat(alone, options.start[:-1]).max())
        proven = max(exact_bound(options, bound.prices, bound.memory_prices), Fraction(largest))
        assert Fraction(bound.seconds) <= proven, f"case {seed}"
        assert bound.seconds == pytest.approx(float(proven), rel=1e-5)


def test_highs_bound_equals_another_solver(calibration: Calibration) -> None:
    cbc = pytest.importorskip("pulp", reason="needs pulp, whose solver is CBC")
    if highs() is None:
        pytest.skip("needs the extra highspy")
    for seed in range(24):
        options = compute_option_costs(random_inputs(seed), calibration)
        lagrangian = compute_aggregate_bound(options)
        linear = compute_linear_bound(options, lagrangian)
        if linear is None:
            continue
        found = by_cbc(cbc, options)
        assert linear.seconds <= max(found, lagrangian.seconds) * (1 + 1e-6), f"case {seed}"
        assert linear.seconds >= found * (1 - 1e-5), f"case {seed}"


def by_cbc(cbc: Any, options: Options) -> float:
    """The aggregate problem, written for another solver."""
    problem = cbc.LpProblem("bound", cbc.LpMinimize)
    step = cbc.LpVariable("step", 0)
    takes = [cbc.LpVariable(f"take_{each}", 0, 1) for each in range(len(options))]
    problem += step
    scale = float((options.base + options.shard + options.fixed).max())
    load, memory = options.total() / options.num_ranks, options.total_memory() / options.num_ranks
    for table in range(len(options.table_names)):
        problem += cbc.lpSum(takes[each] for each in options.of(table)) == 1
    for resource in range(load.shape[1]):
        used = cbc.lpSum(float(load[i, resource] / scale) * take for i, take in enumerate(takes))
        problem += used + float(options.fixed[resource] / scale) <= step
    for kind, capacity in enumerate(options.capacity):
        problem += (
            cbc.lpSum(float(memory[i, kind] / capacity) * take for i, take in enumerate(takes)) <= 1
        )
    for table in range(len(options.table_names)):
        for resource in range(load.shape[1]):
            base = cbc.lpSum(
                float(options.base[i, resource] / scale) * take for i, take in enumerate(takes)
            )
            shard = cbc.lpSum(
                float(options.shard[i, resource] / scale) * takes[i] for i in options.of(table)
            )
            problem += base + shard + float(options.fixed[resource] / scale) <= step
    problem.solve(cbc.PULP_CBC_CMD(msg=False))
    return float(step.value()) * scale
