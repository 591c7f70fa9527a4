"""Checks of this machine: ports, versions of packages, and memory."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping

from sparring_cli import JobCheck, inspect_machine, list_installed_versions

__all__ = ["check_memory", "check_port", "check_versions"]


def check_port(setting: str, host: str, port: int) -> JobCheck:
    """Tests whether a process can listen on a port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:  # The latter for numbers above 65535.
            return JobCheck(
                f"listen on {setting}",
                "failed",
                f"{host}:{port}: {getattr(error, 'strerror', None) or error}",
                "a free port on an address of this machine",
                f"end the process that uses it, or choose another {setting}",
            )
    return JobCheck(f"listen on {setting}", "ok", f"{host}:{port}")


def check_versions(installed: Mapping[str, str | None] | None = None) -> JobCheck:
    """Compares the versions of all packages of sparring, which must have the same minor version.

    Args:
        installed: name → version; None: the installed ones.
    """
    found = list_installed_versions() if installed is None else installed
    ours = {name: each for name, each in found.items() if name.startswith("sparring") and each}
    minors = {".".join(version.split(".")[:2]) for version in ours.values()}
    shown = ", ".join(sorted(set(ours.values())))
    if len(minors) <= 1:
        return JobCheck("compare versions", "ok", f"{len(ours)} packages of sparring, {shown}")
    core = ours.get("sparring", "")
    minor = core.split(".")[:2]
    others = [f"{name} {each}" for name, each in ours.items() if each.split(".")[:2] != minor]
    return JobCheck(
        "compare versions",
        "failed",
        f"sparring {core} with {', '.join(others)}",
        "the same minor version",
        f"pip install {' '.join(f'{each.split()[0]}~={core}' for each in others)}",
    )


def check_memory(
    table_bytes: Mapping[str, int], num_ranks: int, available: int | None = None
) -> Iterator[JobCheck]:
    """Compares the memory that tables need on this machine with the available memory.

    Args:
        table_bytes: source of the number → bytes of all tables of one rank.
        num_ranks: number of ranks on this machine.
        available: available bytes; None: the memory of this machine.
    """
    if available is None:
        available = inspect_machine().available_bytes
    if not table_bytes or available is None:
        why = "the system does not report its memory" if table_bytes else "the rows are unknown"
        yield JobCheck(
            "compare memory", "skipped", f"{why}; pass --rows, or set tables.memory_bytes"
        )
        return
    for source, one in table_bytes.items():
        needed = one * num_ranks
        found = f"{available / 2**30:,.1f} GiB available"
        operation = f"compare memory with {source}"
        if needed <= available:
            yield JobCheck(operation, "ok", f"{found}, {needed / 2**30:,.1f} GiB needed")
        else:
            yield JobCheck(
                operation,
                "failed",
                found,
                f"at least {needed / 2**30:,.1f} GiB for {num_ranks} ranks",
                "use more machines, a lower tier (storage.backend: tiered), or admit fewer ids",
            )
