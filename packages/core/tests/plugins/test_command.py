"""``python -m sparring`` runs the command of sparring-cli, or prints how to install it."""

from __future__ import annotations

import subprocess
import sys

from sparring_testing.processes.child_processes import run_script

PROGRAM = "import runpy, sys; {}; runpy.run_module('sparring', run_name='__main__', alter_sys=True)"


def test_without_the_package_of_the_command_its_install_line_is_printed() -> None:
    ran = run_script(PROGRAM.format("sys.modules['sparring_cli'] = None"), "--version")
    assert ran.returncode == 2
    assert ran.stderr.endswith("run: pip install 'sparring[cli]'\n")
    assert "Traceback" not in ran.stderr


def test_a_module_that_the_command_needs_is_not_reported_as_the_command() -> None:
    ran = run_script(PROGRAM.format("sys.modules['typer'] = None"), "--version")
    assert ran.returncode == 1
    assert "sparring[cli]" not in ran.stderr
    assert "typer" in ran.stderr.splitlines()[-1]


def test_with_it_the_command_runs() -> None:
    command = [sys.executable, "-m", "sparring", "plugins", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "sparring" in ran.stdout
