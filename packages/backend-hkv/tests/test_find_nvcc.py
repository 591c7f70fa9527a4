"""Selection of the nvcc that compiles the GPU code; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[1] / "find_nvcc.py"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Runs the program with no other nvcc than the CUDACXX that a test sets."""
    spec = importlib.util.spec_from_file_location("find_nvcc", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setattr(made, "USUAL", Path("/nonexistent/nvcc"))
    return made


def write_fake_nvcc(folder: Path, release: str) -> Path:
    """A program that answers like an nvcc of that release."""
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "nvcc"
    made.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    made.chmod(0o755)
    return made


@pytest.mark.parametrize("release", ["12.4", "12.9", "13.0", "13.5"])
def test_an_nvcc_of_a_supported_release_is_used(
    release: str, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDACXX", str(write_fake_nvcc(tmp_path, release)))
    assert module.find_nvcc() == tmp_path / "nvcc"


@pytest.mark.parametrize("release", ["11.8", "12.3", "14.0"])
def test_an_nvcc_of_another_release_is_rejected(
    release: str, module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDACXX", str(write_fake_nvcc(tmp_path, release)))
    with pytest.raises(module.NvccError, match=rf"nvcc is of CUDA {release}"):
        module.find_nvcc()


def test_the_next_nvcc_is_used_if_the_first_is_unsupported(
    module: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDACXX", str(write_fake_nvcc(tmp_path / "old", "11.8")))
    monkeypatch.setattr(module, "USUAL", write_fake_nvcc(tmp_path / "usual", "13.0"))
    assert module.find_nvcc() == tmp_path / "usual" / "nvcc"


def test_an_installed_nvcc_is_not_downloaded_again(module: ModuleType, tmp_path: Path) -> None:
    there = write_fake_nvcc(tmp_path / "13.0/nvidia/cu13/bin", "13.0")
    assert module.install_nvcc(tmp_path) == there


def test_without_an_nvcc_the_program_reports_it_and_fails(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0"}
    nowhere |= {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    ran = subprocess.run(
        [sys.executable, str(SOURCE), str(tmp_path / "made"), "--release", "13.0"],
        env=os.environ | nowhere, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith("cannot install CUDA 13.0: ")
    assert not (tmp_path / "made" / "13.0").exists()
