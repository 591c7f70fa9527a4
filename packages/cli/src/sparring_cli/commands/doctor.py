"""``sparring doctor``: reports the installation and the machine, for troubleshooting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring import PluginManager
from sparring.adapter import native_failure
from sparring.contracts import Descriptor
from sparring_cli.commands.plugins import plugins_as_json, print_plugins
from sparring_cli.context import get_command_context
from sparring_cli.exit_codes import ExitCode
from sparring_cli.gpus import Gpus, inspect_gpus
from sparring_cli.machine import (
    Machine,
    Native,
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
        group="Operate",
        examples=["sparring doctor", "sparring doctor --json"],
    )


def doctor(
    context: typer.Context,
    as_json: JsonOption = False,
) -> None:
    """Report on this installation and this machine: versions, plugins, processor, memory, GPUs."""
    manager = get_command_context(context).plugin_manager
    problems = [failure for failure in (native_failure(),) if failure is not None]
    versions = list_installed_versions()
    native = None if problems else inspect_native()
    machine = inspect_machine()
    gpus = inspect_gpus()
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
        _print_section(console, "machine", _machine_lines(machine))
        _print_section(console, "GPUs", _gpu_lines(gpus))
        _print_plugins(console, manager, unavailable)
    if problems:
        raise typer.Exit(ExitCode.FAILURE)


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
