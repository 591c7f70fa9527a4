"""Facts about the machine and the process in a report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sparring_train.report.host import inspect_host, peak_memory_bytes

PEAK = "from sparring_train.report.host import peak_memory_bytes; print(peak_memory_bytes())"


GROWS = f"""
import subprocess, sys
from sparring_train.report.host import peak_memory_bytes
before = peak_memory_bytes()
large = bytearray(b"x") * (300 << 20)
with_it = peak_memory_bytes()
del large
child = subprocess.run([sys.executable, "-c", {PEAK!r}], check=True, capture_output=True, text=True)
print(before, with_it, peak_memory_bytes(), int(child.stdout))
"""


def test_the_peak_of_a_process_excludes_its_parent() -> None:
    # In a separate process, because this one may have used more memory before.
    ran = subprocess.run([sys.executable, "-c", GROWS], check=True, capture_output=True, text=True)
    before, with_it, after, of_child = map(int, ran.stdout.split())
    assert with_it > before + (250 << 20)
    assert after > before + (250 << 20)
    assert 1 << 20 < of_child < after - (100 << 20)


def test_a_system_without_a_peak_returns_none(tmp_path: Path) -> None:
    assert peak_memory_bytes(tmp_path / "none") == 0
    (tmp_path / "status").write_text("Name: python\n")
    assert peak_memory_bytes(tmp_path / "status") == 0


def test_the_host_has_a_name_and_cores() -> None:
    host = inspect_host()
    assert host.name
    assert host.usable_cores >= 1
