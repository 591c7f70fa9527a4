"""``sparring doctor``: reports the installation and the machine, and checks a job before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring import PluginManager
from sparring.adapter import native_failure
from sparring.contracts import Descriptor
from sparring.errors import PluginError
from sparring_cli import hookspecs
from sparring_cli.commands.plugins import plugins_as_json, print_plugins
from sparring_cli.context import get_command_context
from sparring_cli.exit_codes import ExitCode
from sparring_cli.gpus import Gpus, inspect_gpus
from sparring_cli.hookspecs import JobCheck, JobCheckerDescriptor, JobRequest
from sparring_cli.machine import (
    Machine,
    Native,
    inspect_lookup_server,
    inspect_machine,
    inspect_native,
    list_installed_versions,
)
from sparring_cli.output import make_console, print_json
from sparring_cli.registration import JsonOption, add_command

__all__ = ["add_doctor"]


def add_doctor(application: typer.Typer) -> None:
    add_command(
        application,
        "doctor",
        doctor,
        examples=[
            "sparring doctor",
            "sparring doctor --json",
            "sparring doctor --job run.yaml --rows 100000000 --ranks 4",
        ],
    )


def doctor(
    context: typer.Context,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DOTTED.KEY=VALUE]...", help="Values for keys of the configuration of --job."
        ),
    ] = None,
    job: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG",
            help="Check what the run of this configuration requires: ports, clocks, versions, memory, "
            "and its folders, data and storage. Nothing is changed permanently.",
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Expected number of rows of all tables of the run. Default: the rows of its newest "
            "snapshot.",
            min=1,
        ),
    ] = None,
    ranks: Annotated[
        int, typer.Option(help="Number of ranks of the run on this machine.", min=1)
    ] = 1,
    world_size: Annotated[
        int | None,
        typer.Option(help="Number of ranks on all machines. Default: --ranks.", min=1),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Report on this installation and this machine, or check what a training run requires."""
    manager = get_command_context(context).plugin_manager
    if job is not None:
        _check_job(
            manager,
            JobRequest(str(job), overrides or (), ranks, max(world_size or 1, ranks), rows),
            as_json=as_json,
        )
        return
    if overrides:
        raise typer.BadParameter("values of a configuration require --job CONFIG")
    problems = [failure for failure in (native_failure(),) if failure is not None]
    versions = list_installed_versions()
    native = None if problems else inspect_native()
    machine = inspect_machine()
    gpus = inspect_gpus()
    lookup_server = inspect_lookup_server()
    unavailable = {
        f"{registered.kind} {registered.name}": reason
        for registered in manager.descriptors()
        if (reason := _reason_against(registered.descriptor)) is not None
    }
    if as_json:
        print_json(
            {
                "problems": problems,
                "versions": versions,
                "native": None if native is None else asdict(native),
                "lookup_server": lookup_server,
                "machine": asdict(machine),
                "gpus": asdict(gpus),
                "plugins": plugins_as_json(manager),
                "unavailable": unavailable,
            }
        )
    else:
        console = make_console()
        _print_problems(console, problems)
        _print_section(console, "versions", {k: v or "not installed" for k, v in versions.items()})
        _print_section(console, "native library", _native_lines(native))
        if lookup_server is not None:
            _print_section(console, "sparring serve", {"lookup server": lookup_server})
        _print_section(console, "machine", _machine_lines(machine))
        _print_section(console, "GPUs", _gpu_lines(gpus))
        _print_plugins(console, manager, unavailable)
    if problems:
        raise typer.Exit(ExitCode.FAILURE)


def _check_job(manager: PluginManager, request: JobRequest, *, as_json: bool) -> None:
    manager.extend(hookspecs, {"job_checkers": JobCheckerDescriptor})
    checkers = [
        each.descriptor
        for each in manager.descriptors()
        if isinstance(each.descriptor, JobCheckerDescriptor)
    ]
    if not checkers:
        raise PluginError(
            "sparring doctor --job: no plugin checks jobs; run: pip install sparring-train"
        )
    checks = [check for each in checkers for check in each.check(request, manager)]
    failed = [each for each in checks if each.status == "failed"]
    if as_json:
        print_json({"checks": [asdict(each) for each in checks], "num_failed": len(failed)})
    else:
        _print_checks(make_console(), checks)
    if failed:
        raise typer.Exit(ExitCode.FAILURE)


_STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


def _print_checks(console: Console, checks: Sequence[JobCheck]) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("check", overflow="fold")
    table.add_column("found", overflow="fold")
    for each in checks:
        status = Text(each.status, style=_STYLES[each.status])
        found = Text(each.found)
        if each.status == "failed":
            found.append(f"\nexpected: {each.expected}\nfix: {each.fix}")
        table.add_row(status, Text(each.operation), found)
    console.print(table)


def _print_problems(console: Console, problems: Sequence[str]) -> None:
    for problem in problems:
        console.print(
            Text("problem: ", style="bold red").append(problem, style="not bold default"),
            soft_wrap=True,
        )
        console.print()


def _reason_against(descriptor: Descriptor) -> str | None:
    """Returns why a plugin cannot run here, or None.

    Any error is a reason, because the check may import client libraries that are broken.
    """
    if descriptor.unavailable is None:
        return None
    try:
        return descriptor.unavailable()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _native_lines(native: Native | None) -> dict[str, str]:
    if native is None:
        return {"SIMD level": "not loaded"}
    return {
        "SIMD level": native.simd_level,
        "execution pool": f"{native.num_threads} threads",
    }


def _machine_lines(machine: Machine) -> dict[str, str]:
    return {
        "system": machine.system,
        "processor": _known(machine.processor),
        "features": " ".join(machine.features) or "unknown",
        "usable cores": str(machine.usable_cores),
        "memory": f"{_gibibytes(machine.memory_bytes)}, "
        f"{_gibibytes(machine.available_bytes)} available",
        "transparent huge pages": _known(machine.transparent_huge_pages),
        "huge pages set aside": _known(machine.huge_pages),
    }


def _gpu_lines(gpus: Gpus) -> dict[str, str]:
    lines = {
        f"cuda:{number}": f"{gpu.name}, {_gibibytes(gpu.memory_bytes)}"
        for number, gpu in enumerate(gpus.devices)
    }
    if gpus.reason is not None:
        lines["none"] = gpus.reason
    if gpus.driver is not None or gpus.cuda_release is not None:
        lines["driver"] = f"{_known(gpus.driver)}, runs CUDA up to {_known(gpus.cuda_release)}"
    return lines


def _known(value: object) -> str:
    return "unknown" if value is None else str(value)


def _gibibytes(count: int | None) -> str:
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"


def _print_section(console: Console, title: str, lines: dict[str, Any]) -> None:
    console.print(Text(title, style="bold"))
    table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=24)
    table.add_column(overflow="fold")
    for name, value in lines.items():
        table.add_row(f"  {name}", Text(str(value)))
    console.print(table)
    console.print()


def _print_plugins(
    console: Console, manager: PluginManager, unavailable: Mapping[str, str]
) -> None:
    console.print(Text("plugins", style="bold"))
    print_plugins(console, manager)
    for part, reason in unavailable.items():
        console.print(
            Text("cannot run here: ", style="bold yellow").append(
                f"{part}: {reason}", style="not bold default"
            )
        )
