"""Processes of `sparring serve --workers`."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparring_cli.application import main
from sparring_serve.cli import serve


class Ended:
    """A process that has ended."""

    returncode = 0

    def poll(self) -> int:
        return 0

    def wait(self) -> int:
        return 0


@pytest.mark.parametrize(
    ("given", "expected"),
    [([], []), (["-q"], ["--quiet"]), (["-v"], ["--verbose"])],
    ids=["default", "quiet", "verbose"],
)
def test_workers_receive_the_verbosity_and_the_role(
    given: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "serving.yaml"
    config.write_text("snapshots: served\nserver: {address: '127.0.0.1:0', front_end: python}\n")
    commands: list[list[str]] = []

    def start(command: list[str]) -> Ended:
        commands.append(command)
        return Ended()

    monkeypatch.setattr(serve.subprocess, "Popen", start)
    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    assert main([*given, "serve", str(config), "--workers", "2", "--role", "inference"]) == 1
    for number, command in enumerate(commands):
        assert command[3 : command.index("serve")] == expected
        assert command[-4:] == ["--role", "inference", "--worker", str(number)]
    assert len(commands) == 2
