"""Compiles small programs in C and C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

__all__ = ["compile_program"]


def compile_program(source: Path, target: Path, *options: str | Path, package: str = "") -> Path:
    """Compiles a program or a library with all warnings as errors; skips the test without a compiler.

    Args:
        source: a file in C (``.c``) or C++17.
        target: the file to write.
        options: more options of the compiler, after the source.
        package: a library that pkg-config finds.

    Returns:
        `target`.
    """
    name = "cc" if source.suffix == ".c" else "c++"
    if shutil.which(name) is None:
        pytest.skip(f"needs the compiler {name}; Debian and Ubuntu: apt-get install g++")
    found: list[str] = []
    if package:
        if shutil.which("pkg-config") is None:
            pytest.skip("needs pkg-config; Debian and Ubuntu: apt-get install pkg-config")
        asked = ["pkg-config", "--cflags", "--libs", package]
        ran = subprocess.run(asked, capture_output=True, text=True, check=False)
        if ran.returncode:
            pytest.skip(f"needs {package} for C++; on Debian and Ubuntu, lib{package}-dev")
        found = ran.stdout.split()
    standard = [] if name == "cc" else ["-std=c++17"]
    command = [name, *standard, "-Wall", "-Wextra", "-Werror", source, *options, *found]
    subprocess.run([*command, "-o", target], check=True)
    return target
