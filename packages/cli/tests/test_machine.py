"""The values that ``doctor`` reads from systems that report much, little or nothing."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path

import pytest

from sparring_cli.machine import inspect_lookup_server, inspect_machine

CPU = "processor\t: 0\nmodel name\t: A Processor\nflags\t\t: fpu sse4_2 avx2 fma avx512f\n"
MEMORY = "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nHugePages_Total:       3\n"


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_processor_memory_and_huge_pages_are_read(tmp_path: Path) -> None:
    machine = inspect_machine(
        system(
            tmp_path,
            {
                "proc/cpuinfo": CPU + CPU.replace("A Processor", "Another"),
                "proc/meminfo": MEMORY,
                "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
            },
        )
    )
    assert machine.processor == "A Processor"
    assert machine.features == ("sse4_2", "avx2", "fma", "avx512f")
    assert (machine.memory_bytes, machine.available_bytes) == (2048 * 1024, 1024 * 1024)
    assert machine.transparent_huge_pages == "madvise"
    assert machine.huge_pages == 3
    assert machine.usable_cores >= 1


def test_the_limit_of_a_container_counts_if_it_is_lower(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMORY, "sys/fs/cgroup/memory.max": "500000\n"}
    machine = inspect_machine(system(tmp_path, files))
    assert (machine.memory_bytes, machine.available_bytes) == (500_000, 500_000)


def test_no_limit_is_not_a_number(tmp_path: Path) -> None:
    files = {"proc/meminfo": MEMORY, "sys/fs/cgroup/memory.max": "max\n"}
    assert inspect_machine(system(tmp_path, files)).memory_bytes == 2048 * 1024


def test_values_that_a_system_does_not_report_are_unknown(tmp_path: Path) -> None:
    machine = inspect_machine(tmp_path)
    assert machine.processor is None
    assert machine.features == ()
    assert machine.memory_bytes is None
    assert machine.transparent_huge_pages is None
    assert machine.huge_pages is None


def test_the_lookup_server_is_native_only_if_it_was_built_and_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sparring_serve/__init__.py"
    spec = importlib.machinery.ModuleSpec("sparring_serve", None, origin=str(package))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert inspect_lookup_server() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: spec)
    found = inspect_lookup_server()
    assert found is not None
    assert found.startswith("python, because the native server was not built")
    assert "apt install libgrpc++-dev" in found
    program = package.parent / "bin/sparring-serve-native"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho no libgrpc >&2; exit 127\n")
    program.chmod(0o755)
    assert inspect_lookup_server() == "python, because the native server cannot start: no libgrpc"
    program.write_text("#!/bin/sh\necho gRPC 1.51.1 and OpenSSL 3.0.19\n")
    assert inspect_lookup_server() == "native, with gRPC 1.51.1 and OpenSSL 3.0.19"
