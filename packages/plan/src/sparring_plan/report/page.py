"""A plan as one static HTML page."""

from __future__ import annotations

import os
from html import escape
from importlib import resources
from pathlib import Path

import numpy as np

from sparring.errors import DataError
from sparring_plan.planning.costs.costs import RESOURCES
from sparring_plan.planning.inputs import Calibration, Link, PlanInputs
from sparring_plan.planning.plan import NextBest, Plan, TablePlan
from sparring_plan.report.bars import COLORS, Bar, columns, legend, rows
from sparring_plan.simulation.sheet import SimulatedPlan, make_simulated_plan

__all__ = ["render_report", "write_report"]

_WORDS = {
    "compute": "finds and updates",
    "far_out": "bytes to other nodes",
    "far_in": "bytes from other nodes",
    "near_out": "bytes out within the node",
    "near_in": "bytes in within the node",
    "messages": "messages",
}
_MAX_RANKS = 6
"""Maximum number of ranks to list per table, so that a page with a thousand ranks stays readable."""

_MAX_NODES, _MAX_RANKS_OF_NODE = 8, 8
"""Maximum numbers of nodes, and of ranks per node, to draw."""


def write_report(
    path: str | os.PathLike[str], plan: Plan, inputs: PlanInputs, calibration: Calibration
) -> None:
    """Writes the page atomically; replaces an existing file.

    Raises:
        ConfigError, CapacityError: The plan is for other inputs, or does not fit them.
        DataError: The file cannot be written.
    """
    page = render_report(plan, inputs, calibration)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(page, "utf-8")
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(
            f"{target}: cannot write the report: {error.strerror}; choose another file",
            path=str(target),
        ) from error


def render_report(plan: Plan, inputs: PlanInputs, calibration: Calibration) -> str:
    """Returns the page as text; the same inputs give the same text."""
    simulated = make_simulated_plan(inputs, calibration, plan)
    title = f"sparring: plan of {_count(len(plan.tables), 'table')} on {_count(plan.ranks, 'rank')}"
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{_lead(simulated)}</p>',
        _tiles(simulated, inputs),
        _topology(inputs),
        _bounds(simulated),
        _loads(simulated),
        _memories(simulated),
        _tables(plan),
        _origin(plan),
    ]
    style = resources.files("sparring_plan.report").joinpath("style.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n</body>\n</html>\n"
    )


def _lead(simulated: SimulatedPlan) -> str:
    load = simulated.placement.load
    rank, resource = divmod(int(np.argmax(load)), load.shape[1])
    return (
        f"{_WORDS[RESOURCES[resource]].capitalize()} of rank {rank} limit the step. All times are "
        "predictions, not measurements."
    )


def _tiles(simulated: SimulatedPlan, inputs: PlanInputs) -> str:
    plan, step = simulated.plan, simulated.step
    samples = inputs.samples * plan.ranks / step.seconds
    price = inputs.topology.price_per_hour * inputs.topology.nodes
    how = "every message replayed" if step.method == "replay" else "sum of costs, not replayed"
    tiles = [
        (f"{step.seconds * 1e3:.4g} ms", f"step, simulated: {how}"),
        (f"{simulated.placement.seconds * 1e3:.4g} ms", "step, by the cost model of the planner"),
        (f"{plan.bound_ms:.4g} ms", f"no plan is shorter; gap {plan.gap:.2%}, by {plan.solver}"),
        (f"{samples:,.0f}", "samples per second, without dense layers"),
        (f"{step.far_bytes / 1e6:,.2f} MB", "to other nodes, per step, on the busiest rank"),
        (f"{step.num_messages:,}", "messages sent, per step, on the busiest rank"),
    ]
    if price:
        tiles.append((f"{price:,.2f}", "price per hour, as given"))
        tiles.append((f"{price / samples / 3600 * 1e9:,.2f}", "price per 10⁹ samples"))
    cells = (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(remark)}</span></div>'
        for value, remark in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _topology(inputs: PlanInputs) -> str:
    topology = inputs.topology
    ranks = _count(topology.ranks_per_node, "rank")
    nodes = "".join(
        f'<div class="node"><b>node {node}</b>{_ranks_of_node(node, topology.ranks_per_node)}</div>'
        for node in range(min(topology.nodes, _MAX_NODES))
    )
    more = topology.nodes - _MAX_NODES
    nodes += f'<div class="node">and {_count(more, "more node")}</div>' if more > 0 else ""
    memory = ", ".join(f"{kind} {held / 2**30:,.4g} GiB" for kind, held in topology.memory.items())
    facts = {
        "Nodes": f"{topology.nodes:,}, each with {ranks}",
        "Memory of a rank for tables": memory,
        "Link of a rank within its node": _link(topology.near),
        "Link of a node to other nodes": f"{_link(topology.far)}, shared by its ranks",
        "Samples per rank and step": f"{inputs.samples:,}",
    }
    if topology.nodes == 1:
        del facts["Link of a node to other nodes"]
    lines = (
        f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>" for name, fact in facts.items()
    )
    drawing = f'<div class="nodes">{nodes}</div><table>{"".join(lines)}</table>'
    return _section("Topology", "As given in the inputs.", drawing)


def _ranks_of_node(node: int, num_ranks: int) -> str:
    first = node * num_ranks
    shown = [str(first + each) for each in range(min(num_ranks, _MAX_RANKS_OF_NODE))]
    if num_ranks > len(shown):
        shown[-1:] = ["…", str(first + num_ranks - 1)]
    return "".join(f"<i>{each}</i>" for each in shown)


def _link(link: Link) -> str:
    return f"{link.gbit:g} Gbit/s in each direction, latency {link.latency_us:g} µs"


def _bounds(simulated: SimulatedPlan) -> str:
    most = simulated.placement.load.max(axis=0) * 1e3
    peak = int(np.argmax(most))
    bars = [
        Bar(_WORDS[name], float(ms), COLORS[index], f"{ms:.4g} ms")
        for index, (name, ms) in enumerate(zip(RESOURCES, most, strict=True))
    ]
    word = _WORDS[RESOURCES[peak]].capitalize()
    text = f"Each resource on the rank that uses it longest. {word} limit the step."
    return _section("Limit of the step", text, rows(bars, unit="ms"))


def _loads(simulated: SimulatedPlan) -> str:
    load = simulated.placement.load * 1e3
    bars = []
    for rank, of_rank in enumerate(load):
        peak = int(np.argmax(of_rank))
        tip = "; ".join(
            f"{_WORDS[name]} {ms:.3g} ms" for name, ms in zip(RESOURCES, of_rank, strict=True)
        )
        bars.append(Bar(str(rank), float(of_rank[peak]), COLORS[peak], f"rank {rank}: {tip}"))
    seen = sorted({int(np.argmax(of_rank)) for of_rank in load})
    names = legend([(_WORDS[RESOURCES[each]], COLORS[each]) for each in seen])
    mean = float(load.max(axis=1).mean())
    worst = float(load.max())
    text = (
        f"The resource that each rank uses longest. The slowest rank is "
        f"{worst / mean - 1 if mean else 0:.1%} above the mean of {mean:.3g} ms."
    )
    return _section("Load of each rank", text, names + columns(bars, unit="ms"))


def _memories(simulated: SimulatedPlan) -> str:
    placement = simulated.placement
    capacity = placement.options.capacity
    sections = []
    for index, kind in enumerate(placement.options.memories):
        held = placement.memory[:, index] / 2**30
        limit = float(capacity[index]) / 2**30
        bars = [
            Bar(str(rank), float(gib), COLORS[index % len(COLORS)], f"rank {rank}: {gib:.4g} GiB")
            for rank, gib in enumerate(held)
        ]
        text = (
            f"{kind}: the fullest rank uses {held.max():.4g} of {limit:.4g} GiB "
            f"({held.max() / limit:.1%}), all ranks {held.sum():,.4g} GiB."
        )
        sections.append(
            f'<p class="note">{escape(text)}</p>' + columns(bars, unit="GiB", limit=limit)
        )
    text = (
        "At the horizon. The dashed line is the capacity of a rank, without chunks of the exchange."
    )
    return _section("Memory of each rank, by kind", text, "".join(sections))


def _tables(plan: Plan) -> str:
    head = "".join(
        f'<th class="number">{name}</th>' if number else f"<th>{name}</th>"
        for name, number in (
            ("Table", False), ("Kind", False), ("Ranks", False), ("Transfer", False),
            ("Storage", False), ("Rows", True), ("MiB", True), ("ms", True), ("Because", False),
            ("Next best", False),
        )
    )  # fmt: skip
    order = sorted(plan.tables.items(), key=lambda each: (-each[1].ms, each[0]))
    lines = (_table_line(name, table) for name, table in order)
    text = "Slowest first. MiB and ms are for the table's busiest rank."
    return _section("Tables", text, f"<table><tr>{head}</tr>{''.join(lines)}</table>")


def _table_line(name: str, table: TablePlan) -> str:
    kind = table.kind if table.columns == 1 else f"{table.kind}, {table.columns} column blocks"
    storage = table.storage
    if table.hit_rates is not None:
        storage += f" (hits {', '.join(f'{each:.1%}' for each in table.hit_rates)})"
    cells = [name, kind, _ranks(table), table.transfer, storage]
    numbers = [f"{table.rows:,}", f"{table.bytes / 2**20:,.1f}", f"{table.ms:.3g}"]
    return (
        "<tr>"
        + "".join(f"<td>{escape(each)}</td>" for each in cells)
        + "".join(f'<td class="number">{escape(each)}</td>' for each in numbers)
        + f'<td class="because">{escape(table.because)}</td>'
        + f"<td>{escape(_next(table.next_best))}</td></tr>"
    )


def _ranks(table: TablePlan) -> str:
    if table.ranks == "all":
        return "all"
    shown = ", ".join(map(str, table.ranks[:_MAX_RANKS]))
    more = len(table.ranks) - _MAX_RANKS
    return shown if more <= 0 else f"{shown} and {more} more"


def _next(best: NextBest | None) -> str:
    if best is None:
        return "none fits"
    return (
        f"{best.kind}, {best.transfer}, {best.storage}: {best.step_ms:+.3g} ms, "
        f"{best.bytes / 2**20:+,.1f} MiB"
    )


def _origin(plan: Plan) -> str:
    facts = {"Inputs": plan.inputs, "Calibration": plan.calibration, "Solver": plan.solver}
    if plan.memory_full is not None:
        facts["Memory is full"] = plan.memory_full
    lines = (
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts.items()
    )
    return _section("Origin", "", f"<table>{''.join(lines)}</table>")


def _section(title: str, text: str, content: str) -> str:
    note = f'<p class="note">{escape(text)}</p>' if text else ""
    return f'<h2>{escape(title)}</h2><div class="box">{note}{content}</div>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
