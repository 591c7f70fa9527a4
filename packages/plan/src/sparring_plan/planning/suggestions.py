"""Suggests changes if the tables do not fit, with the cost of each change."""

from __future__ import annotations

from collections.abc import Iterator

from sparring.errors import ConfigError
from sparring_plan.planning.costs.costs import compute_option_costs
from sparring_plan.planning.inputs import Calibration, PlanInputs, TableSpec
from sparring_plan.planning.search.search import fits, search

__all__ = ["suggest_changes"]

_MAX_NODE_FACTOR = 64


def suggest_changes(inputs: PlanInputs, calibration: Calibration) -> list[str]:
    """Returns sentences for changes of the inputs that fit, cheapest per hour first."""
    found = []
    for sentence, changed in _changes(inputs, calibration):
        step = _step_seconds(changed, calibration)
        if step is not None:
            price = changed.topology.price_per_hour * changed.topology.nodes
            found.append(
                (price, step, f"{sentence}: a step of {step * 1e3:.3g} ms, {price:g} per hour")
            )
    return [sentence for _, _, sentence in sorted(found)]


def _changes(inputs: PlanInputs, calibration: Calibration) -> Iterator[tuple[str, PlanInputs]]:
    narrow = {name: _in_16_bit(spec) for name, spec in inputs.tables.items()}
    if narrow != inputs.tables:
        yield "rows of bfloat16", inputs.model_copy(update={"tables": narrow})
    rowwise = {name: _with_rowwise_state(spec) for name, spec in inputs.tables.items()}
    if rowwise != inputs.tables:
        yield "rowwise_adagrad for all tables", inputs.model_copy(update={"tables": rowwise})
        both = {name: _in_16_bit(spec) for name, spec in rowwise.items()}
        if both != rowwise:
            sentence = "rows of bfloat16 and rowwise_adagrad"
            yield sentence, inputs.model_copy(update={"tables": both})
    nodes = _find_min_nodes(inputs, calibration)
    if nodes is not None:
        yield f"{nodes} nodes instead of {inputs.topology.nodes}", _with_nodes(inputs, nodes)


def _in_16_bit(spec: TableSpec) -> TableSpec:
    return spec.model_copy(update={"dtype": "bfloat16"}) if spec.element_bytes > 2 else spec


def _with_rowwise_state(spec: TableSpec) -> TableSpec:
    if spec.state_width < spec.dim:
        return spec
    # A copy would keep the cached state width of the old method.
    changed = {**spec.model_dump(), "method": "rowwise_adagrad", "state_elements": None}
    return TableSpec.model_validate(changed)


def _with_nodes(inputs: PlanInputs, nodes: int) -> PlanInputs:
    topology = inputs.topology.model_copy(update={"nodes": nodes})
    return inputs.model_copy(update={"topology": topology})


def _find_min_nodes(inputs: PlanInputs, calibration: Calibration) -> int | None:
    fewest = inputs.topology.nodes
    most = fewest * 2
    while not fits(compute_option_costs(_with_nodes(inputs, most), calibration)):
        if most >= fewest * _MAX_NODE_FACTOR:
            return None
        most *= 2
    low = most // 2
    while most - low > 1:
        middle = (low + most) // 2
        if fits(compute_option_costs(_with_nodes(inputs, middle), calibration)):
            most = middle
        else:
            low = middle
    return most


def _step_seconds(inputs: PlanInputs, calibration: Calibration) -> float | None:
    try:
        options = compute_option_costs(inputs, calibration)
    except ConfigError:
        # rowwise_adagrad couples columns, so it does not help if all kinds split columns.
        return None
    found = search(options)
    return None if found is None else found.placement.seconds
