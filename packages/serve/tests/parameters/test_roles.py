"""`sparring serve` without `--role` starts the role that its file declares."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from sparring_cli.application import main
from sparring_serve import ParameterClient
from sparring_serve.testing.front_ends import call
from sparring_serve.testing.memory_servers import open_learning_server
from sparring_serve.testing.serve_process import ServeProcess
from sparring_serve.wire.messages import SERVICE


def test_a_file_that_declares_parameters_starts_a_server_that_learns(tmp_path: Path) -> None:
    path = tmp_path / "parameters.yaml"
    folder = tmp_path / "saved"
    path.write_text(f"parameters: {{tables: {{item: {{dim: 4}}}}, folders: ['{folder}']}}\n")
    with ServeProcess(path) as server:
        with ParameterClient(server.address) as client:
            client.push({"item": ([7], np.ones((1, 4), np.float32))}, wait="applied")
        assert server.end(signal.SIGTERM) == 0


STACK = (
    "{backend: tiered, options: {tiers: [{backend: memory}, {backend: redis, options: {url: "
    "'redis://127.0.0.1/0'}}], refresh: {}}}"
)


@pytest.mark.parametrize("read", ["snapshots: served", f"tables: {{item: {{storage: {STACK}}}}}"])
def test_a_file_that_declares_both_roles_needs_the_option(
    read: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "both.yaml"
    path.write_text(f"parameters: {{tables: {{item: {{dim: 4}}}}, folders: [saved]}}\n{read}\n")
    assert main(["serve", str(path)]) != 0
    said = " ".join(capsys.readouterr().err.split())
    for role in ("parameters", "inference"):
        assert f"sparring serve {path} --role {role}" in said


def test_a_refresh_of_a_server_that_learns_is_refused(tmp_path: Path) -> None:
    with open_learning_server(tmp_path) as server:
        code, message, _, _ = call(server.address, f"{SERVICE}/Refresh", timeout=9)
    assert code == "UNIMPLEMENTED"
    assert "role parameters" in message
