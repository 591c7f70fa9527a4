"""``sparring plan simulate``: simulates plans for several numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sparring.errors import InvalidArgumentError
from sparring_cli import JsonOption, make_console, print_json
from sparring_plan.planning.inputs import Calibration, PlanInputs, read_inputs
from sparring_plan.planning.plan import read_plan
from sparring_plan.simulation.sheet import SheetRow, simulate_sheet

__all__ = ["simulate"]

_RANKS = "8,16,32,64,128,256,512,1024"


def simulate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[PLAN] INPUTS",
            help="A plan and its inputs, or only the inputs. The plan is simulated for its number of "
            "ranks; plans for the other numbers are created.",
        ),
    ],
    ranks: Annotated[
        str | None,
        typer.Option(help=f"Numbers of ranks, separated by commas. Default: {_RANKS}."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate steps of plans for several numbers of ranks: their time, bytes, memory and price."""
    if len(files) > 2:
        raise InvalidArgumentError(
            f"sparring plan simulate: expected a plan and its inputs, or only inputs, found "
            f"{len(files)} files"
        )
    inputs, calibration = read_inputs(files[-1])
    plan = read_plan(files[0]) if len(files) == 2 else None
    wanted = _numbers_from(ranks or _RANKS)
    if plan is not None and ranks is None:
        wanted.append(plan.ranks)
    rows = simulate_sheet(inputs, calibration, wanted, plan)
    if as_json:
        print_json(
            {
                "calibration": calibration.name,
                "samples_of_a_rank": inputs.samples,
                "costs": {
                    cost.name: {"value": cost.value, "mark": cost.mark}
                    for cost in _costs(inputs, calibration)
                },
                "rows": [_as_json(row) for row in rows],
            }
        )
        return
    _print(rows, _costs(inputs, calibration), calibration)


_MARKS = {
    "step_seconds": "simulated",
    "samples_per_second": "simulated",
    "memory_bytes": "simulated",
    "hit_rates": "simulated",
    "memory_full": "simulated",
    "sent_bytes": "simulated",
    "far_bytes": "simulated",
    "num_messages": "simulated",
    "price_per_hour": "given",
    "price_per_billion_samples": "simulated",
}
"""Field → origin of its values. See `_costs` for the costs that they are computed from."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """A cost of steps, and whether its value is measured or given."""

    name: str
    value: float
    mark: str


def _costs(inputs: PlanInputs, calibration: Calibration) -> list[_Cost]:
    """Returns the costs of the storages, the exchange, the links and the dense model.

    Costs of a calibration with a date were measured by `sparring plan calibrate`. Costs of the
    topology are measured if they come from the calibration.
    """
    mark = "measured" if calibration.date else "given"
    held = {
        name: each.model_dump(exclude={"memory", "backend", "options"}, exclude_none=True)
        for name, each in calibration.storages.items()
        if each.memory in inputs.topology.memory
    }
    held["exchange"] = calibration.exchange.model_dump(
        exclude={"memory", "chunk_rows", "chunks_in_flight"}
    )
    costs = [_Cost(name, value, mark) for name, value in _numbers(held)]
    machine, topology = calibration.machine, inputs.topology
    of_topology = {
        "message_us": (topology.message_us, machine and machine.message_us),
        "near.gbit": (topology.near.gbit, machine and machine.link_gbit),
        "near.latency_us": (topology.near.latency_us, machine and machine.link_latency_us),
        "far.gbit": (topology.far.gbit, None),
        "far.latency_us": (topology.far.latency_us, None),
    }
    for name, (value, measured) in of_topology.items():
        costs.append(_Cost(name, value, mark if value == measured else "given"))
    if machine is not None and machine.dense_ms:
        costs.append(_Cost("dense_ms", machine.dense_ms, mark))
    return costs


def _numbers(held: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    """Yields dotted names and their numbers."""
    for name, value in held.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{before}{name}.")
        elif isinstance(value, int | float):
            yield f"{before}{name}", float(value)


def _hits(row: SheetRow) -> str:
    """Formats the shares of all tiers of the first stack, and the number of further stacks."""
    found = list((row.hit_rates or {}).values())
    if not found:
        return ""
    more = f" +{len(found) - 1}" if len(found) > 1 else ""
    return " ".join(f"{each:.1%}" for each in found[0]) + more


def _as_json(row: SheetRow) -> dict[str, Any]:
    return {**asdict(row), "marks": _MARKS}


def _print(rows: Sequence[SheetRow], costs: Sequence[_Cost], calibration: Calibration) -> None:
    console = make_console()
    found = [row for row in rows if row.step is not None]
    console.print(_times(rows))
    console.print()
    console.print(_bytes(found))
    for row in rows:
        if row.problem is not None:
            console.print(f"{row.ranks:,} ranks: {row.problem}")
    notes = [
        "how: replay simulates every message; linear is the maximum use of a resource on a rank. "
        "Includes dense layers if the calibration does. GiB, MB and messages: busiest rank, per step."
    ]
    if any(row.hit_rates for row in found):
        notes.append("hits: share of ids that each tier serves, hottest first.")
    if any(row.memory_full for row in found):
        notes.append("full: when growing tables have filled a rank.")
    console.print(" ".join(notes))
    console.print()
    for mark, where in (("measured", f" ({calibration.name}, {calibration.date})"), ("given", "")):
        listed = [
            f"{cost.name} {cost.value:.4g}" for cost in costs if cost.value and cost.mark == mark
        ]
        if listed:
            console.print(f"costs that are {mark}{where}: {', '.join(listed)}")


def _times(rows: Sequence[SheetRow]) -> Table:
    table = _table(
        ("ranks", ""), ("kinds", ""), ("storages", ""), ("step ms", "simulated"), ("how", ""),
        ("bound by", "simulated"), ("samples/s", "simulated"), ("price/h", "given"),
        ("per 1e9 samples", "simulated"),
    )  # fmt: skip
    for row in rows:
        if row.step is None:
            table.add_row(f"{row.ranks:,}", "no plan fits")
            continue
        table.add_row(
            f"{row.ranks:,}",
            ", ".join(row.kinds),
            ", ".join(row.storages),
            f"{row.step.seconds * 1e3:.4g}",
            row.step.method,
            row.step.bound_by,
            f"{row.samples_per_second:,.0f}",
            f"{row.price_per_hour:,.2f}",
            f"{row.price_per_billion_samples:,.2f}",
        )
    return table


def _bytes(rows: Sequence[SheetRow]) -> Table:
    memories = list((rows[0].memory_bytes or {}) if rows else ())
    has_tiers, grows = any(row.hit_rates for row in rows), any(row.memory_full for row in rows)
    table = _table(
        ("ranks", ""),
        *((f"{memory} GiB", "simulated") for memory in memories),
        *((("hits", "simulated"),) if has_tiers else ()),
        *((("full", "simulated"),) if grows else ()),
        ("far MB", "simulated"),
        ("sent MB", "simulated"),
        ("messages", "simulated"),
    )
    for row in rows:
        assert row.step is not None
        held = row.memory_bytes or {}
        table.add_row(
            f"{row.ranks:,}",
            *(f"{held[each] / 2**30:,.1f}" for each in memories),
            *((_hits(row),) if has_tiers else ()),
            *(((row.memory_full or "").partition(":")[0],) if grows else ()),
            f"{row.step.far_bytes / 1e6:,.2f}",
            f"{row.step.sent_bytes / 1e6:,.2f}",
            f"{row.step.num_messages:,}",
        )
    return table


def _table(*columns: tuple[str, str]) -> Table:
    """Creates a table from column names and marks."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, mark in columns:
        left = name in {"kinds", "storages", "how", "bound by"}
        table.add_column(f"{name}\n{mark}", justify="left" if left else "right", no_wrap=True)
    return table


def _numbers_from(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise InvalidArgumentError(
            f"sparring plan simulate: --ranks must be integers separated by commas, such as {_RANKS}, "
            f"found {text!r}"
        ) from None
