"""``sparring simulate``: how long a step would take on many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer
from rich.table import Table

from sparring import context_of, make_console, print_json
from sparring.errors import InvalidArgumentError
from sparring_plan.simulation.calibration import calibrate
from sparring_plan.simulation.model import Compute, Network, SimulatedSchedule, Workload
from sparring_plan.simulation.replay import SimulatedStep, simulate

__all__ = ["add_simulate", "numbers_from"]

_RANKS = "8,16,32,64,128,256,512,1024"


def _of_the_step(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="The step")


def _of_the_model(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="The model")


def add_simulate(application: typer.Typer) -> None:
    application.command("simulate")(simulate_command)


def simulate_command(  # noqa: PLR0913, PLR0917 (each is an option of the command line)
    context: typer.Context,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks, with commas between.")] = _RANKS,
    ids: Annotated[int, _of_the_step("Ids of a rank's batch.")] = 262_144,
    unique_share: Annotated[float, _of_the_step("How many ids are no repeats, 0 to 1.")] = 0.5,
    shared_share: Annotated[
        float,
        _of_the_step("How many keys of a rank another rank of its machine has too, 0 to 1."),
    ] = 0.0,
    dim: Annotated[int, _of_the_step("Of an embedding.")] = 64,
    wire_dtype: Annotated[str, _of_the_step("What rows and gradients travel as.")] = "exact",
    chunk_rows: Annotated[int, _of_the_step("Keys in a message at most.")] = 4096,
    chunks_in_flight: Annotated[int, _of_the_step("Chunks under way each way.")] = 8,
    latency_us: Annotated[float, _of_the_model("Between machines.")] = 20.0,
    gbit: Annotated[
        float,
        _of_the_model("Gbit/s of a machine's link, each way."),
    ] = 10.0,
    message_us: Annotated[
        float | None,
        _of_the_model("What a message costs each end; 20."),
    ] = None,
    ranks_per_machine: Annotated[int, _of_the_model("Ranks that share a machine's link.")] = 8,
    machine_latency_us: Annotated[float, _of_the_model("Within a machine.")] = 2.0,
    machine_gbit: Annotated[
        float,
        _of_the_model("Gbit/s of a rank to its machine's others."),
    ] = 40.0,
    find_ns: Annotated[float | None, _of_the_model("To find a row; 100.")] = None,
    add_ns: Annotated[float | None, _of_the_model("To add a gradient up; 100.")] = None,
    move_ns: Annotated[float | None, _of_the_model("To pack or place a row; 20.")] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--calibrate",
            help="Measure on this machine what finding, adding, placing and a message cost. What "
            "is given by hand stays.",
        ),
    ] = False,
    storage: Annotated[
        str, typer.Option(help="The backend whose finds --calibrate measures.")
    ] = "hkv",
    json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Simulate a step on many ranks: the ring, `sequential`, and an exchange in two levels."""
    network = Network(
        latency_seconds=latency_us * 1e-6,
        bytes_per_second=gbit * 125e6,
        ranks_per_machine=ranks_per_machine,
        machine_latency_seconds=machine_latency_us * 1e-6,
        machine_bytes_per_second=machine_gbit * 125e6,
    )
    compute = Compute()
    if measure:
        found = calibrate(dim, storage, context_of(context).plugin_manager)
        network = replace(network, message_seconds=found.message_seconds)
        compute = Compute(
            found.find_seconds_per_row, found.add_seconds_per_row, found.move_seconds_per_row
        )
    if message_us is not None:
        network = replace(network, message_seconds=message_us * 1e-6)
    given = {"find": find_ns, "add": add_ns, "move": move_ns}
    compute = replace(
        compute,
        **{f"{name}_seconds_per_row": ns * 1e-9 for name, ns in given.items() if ns is not None},
    )
    workload = Workload(
        ids, unique_share, dim, wire_dtype, chunk_rows, chunks_in_flight, shared_share
    )
    steps = [
        simulate(schedule, world_size, network, compute, workload)
        for world_size in numbers_from(ranks)
        for schedule in SimulatedSchedule
    ]
    if json:
        print_json(
            {
                "network": asdict(network),
                "compute": asdict(compute),
                "workload": {**asdict(workload), "wire_dtype": wire_dtype},
                "steps": [{**asdict(step), "schedule": step.schedule.value} for step in steps],
            }
        )
        return
    _print(steps, network, compute, workload)


def numbers_from(text: str) -> list[int]:
    """The value of ``--ranks``.

    Raises:
        InvalidArgumentError: it holds something else.
    """
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        raise InvalidArgumentError(
            f"--ranks: whole numbers with commas between, such as {_RANKS}, found {text!r}"
        ) from None


def _print(
    steps: Sequence[SimulatedStep], network: Network, compute: Compute, workload: Workload
) -> None:
    console = make_console()
    console.print(
        f"simulated: {workload.num_keys:,} keys of dim {workload.dim} for each rank; machines of "
        f"{network.ranks_per_machine} with {network.bytes_per_second / 125e6:g} Gbit/s and "
        f"{network.latency_seconds * 1e6:g} µs; a message costs {network.message_seconds * 1e6:.3g} "
        f"µs, a row {compute.find_seconds_per_row * 1e9:.3g} ns to find, "
        f"{compute.add_seconds_per_row * 1e9:.3g} to add up, "
        f"{compute.move_seconds_per_row * 1e9:.3g} to move"
    )
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("ranks", "schedule"):
        table.add_column(column, no_wrap=True)
    for column in ("step", "wire", "compute", "messages", "idle", "MB out", "MB inside", "sent"):
        table.add_column(column, justify="right", no_wrap=True)
    before = 0
    for step in steps:
        table.add_row(
            f"{step.world_size:,}" if step.world_size != before else "",
            step.schedule.value,
            f"{step.seconds * 1e3:.2f} ms",
            f"{step.wire_share:.0%}",
            f"{step.compute_share:.0%}",
            f"{step.message_share:.0%}",
            f"{step.idle_share:.0%}",
            f"{step.wire_bytes / 1e6:.2f}",
            f"{step.machine_bytes / 1e6:.2f}",
            f"{step.num_messages:,}",
        )
        before = step.world_size
    console.print(table)
    console.print(
        "Shares of the step overlap. MB and messages are what one rank sends. idle: latency, and "
        "waiting for others."
    )
