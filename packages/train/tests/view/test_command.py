"""Tests of ``sparring look`` as a command."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from sparring_cli import ExitCode, main


def test_command_serves_the_page_until_ctrl_c(run_folder: Path) -> None:
    started = [sys.executable, "-m", "sparring", "look", str(run_folder), "--no-browser", "--json"]
    with subprocess.Popen(
        started,
        stdout=subprocess.PIPE,
        text=True,
        # A background job of a shell starts with SIGINT ignored, and so would its children.
        preexec_fn=lambda: signal.signal(  # noqa: PLW1509 - no other thread runs here
            signal.SIGINT, signal.default_int_handler
        ),
    ) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            with urllib.request.urlopen(f"{told['address']}api/overview", timeout=60) as reply:
                assert json.loads(reply.read())["result"]["url"] == told["url"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_command_writes_a_page(run_folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    colors = tmp_path / "users.csv"
    colors.write_text("user,city\n" + "".join(f"{key},city {key % 3}\n" for key in range(1000)))
    given = ["look", str(run_folder), "--with", f"{run_folder}/base", "--output", str(page)]
    assert main([*given, "--colors", str(colors), "--color-by", "city"]) == 0
    assert '"most_moved"' in page.read_text()
    assert '"city 2"' in page.read_text()
    assert main([*given, "--colors", str(colors)]) == ExitCode.INVALID


def test_errors_of_the_command(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: str) -> tuple[int, str]:
        code = main(["look", *given, "--no-browser"])
        return code, capsys.readouterr().err

    code, message = fails(str(tmp_path / "none"))
    assert code in {ExitCode.FAILURE, ExitCode.NOT_FOUND}
    assert "there is no snapshot" in message
    (tmp_path / "empty").mkdir()
    code, message = fails(str(tmp_path / "empty"))
    assert code != 0
    assert "is not a committed snapshot" in message
    damaged = tmp_path / "damaged"
    shutil.copytree(run_folder / "base", damaged)
    manifest = damaged / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step"', b'"stop"', 1))
    code, message = fails(str(damaged))
    assert code == ExitCode.FAILURE
    assert "manifest.json" in message
    code, message = fails(str(run_folder), "--with", str(tmp_path / "none"))
    assert code != 0
    assert "none" in message
    code, message = fails(str(run_folder), "--port", "7", "--output", str(tmp_path / "page.html"))
    assert code == ExitCode.INVALID
    assert "remove one of them" in message
