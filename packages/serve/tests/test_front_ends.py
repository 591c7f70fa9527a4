"""The choice between the two servers of the role inference, the start of the native one, and pins."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import sparring_packed
from sparring_cli.application import main
from sparring_serve import ClientConfig, LookupClient, ServingConfig, ShardPosition
from sparring_serve.server import native_front_end
from sparring_serve.testing.front_ends import (
    KEYS,
    ONE_SHARD,
    Folder,
    call,
    make_config,
    open_front_end,
    read_metrics,
)
from sparring_serve.wire.fields import decode
from sparring_serve.wire.messages import SERVICE, GateMessage, RefreshReply

from .conftest import Serve

LONG = ClientConfig(deadline_seconds=20)


def pin(folder: Folder, name: str, by: Any = "gate") -> None:
    gate = sparring_packed.Gate(True, "worse", 5.0, name, by if name else "")
    sparring_packed.write_gate(folder.served, gate)


def test_a_pinned_version_is_served_until_the_pin_is_removed(serve: Serve, folder: Folder) -> None:
    folder.publish(2, base=1)
    server = serve()

    def refresh() -> tuple[RefreshReply, int]:
        reply = decode(RefreshReply, call(server.address, f"{SERVICE}/Refresh")[3])
        return reply, int(client.pull({"item": [7]}).rows["item"][0, 0])

    with LookupClient(server.address, LONG) as client:
        newest = client.pull({"item": [7]}).versions[0].hash
        assert not client.describe().shards[0].gate.is_closed
        pin(folder, "step-1")
        reply, step = refresh()
        assert (reply.is_new, reply.version.step, step) == (True, 1, 1)
        shown = client.describe().shards[0].gate
        assert shown == GateMessage(True, "worse", "step-1", "gate", 5.0)
        # The version before the return is still kept, for calls that began with it.
        assert client.pull({"item": [7]}, version=newest).rows["item"][0, 0] == 2
        folder.publish(3)
        assert (refresh()[1], read_metrics(server)["version_step"]) == (1, 1)
        assert [read_metrics(server)[f"gate_is_{each}"] for each in ("closed", "pinned")] == [1, 1]
        assert read_metrics(server)["is_behind"] == 0
        # A pin that cannot be served changes nothing, and is reported.
        pin(folder, "step-9", "operator")
        reply, step = refresh()
        assert step == 1
        assert "gate.json pins step-9, which cannot be used" in reply.refused
        assert client.describe().shards[0].not_fresh == reply.refused
        assert client.describe().shards[0].gate.pinned_by == "operator"
        assert read_metrics(server)["is_behind"] == 1
        pin(folder, "")
        assert refresh()[1] == 3
        assert client.describe().shards[0].gate == GateMessage(True, "worse", since=5.0)
        # A damaged file is ignored.
        pin(folder, "step-2")
        assert refresh()[1] == 2
        # While the file cannot be read, a version that it withholds is not served.
        pin(folder, "step-1")
        refresh()
        gate = Path(folder.served) / "gate.json"
        gate.unlink()
        gate.symlink_to(gate.name)
        reply, step = refresh()
        assert (step, client.describe().shards[0].gate.pin) == (1, "step-1")
        assert "gate.json" in reply.refused
        gate.unlink()
        gate.write_text("{")
        assert refresh()[1] == 3
        assert client.describe().shards[0].gate == GateMessage()
    assert [read_metrics(server)[f"gate_is_{each}"] for each in ("closed", "pinned")] == [0, 0]


def test_replies_have_one_version_while_pins_change(serve: Serve, folder: Folder) -> None:
    for step in (2, 3):
        folder.publish(step, base=step - 1)
    server = serve(poll_seconds=0.005)
    seen: set[int] = set()
    failures, done = [], threading.Event()

    def ask() -> None:
        with LookupClient(server.address, LONG) as client:
            while not done.is_set():
                try:
                    answer = client.pull({"item": KEYS[:40], "user": KEYS[:40]})
                    [step] = {*answer.rows["item"][:, 0], *answer.rows["user"][:, 0]}
                    assert answer.versions[0].step == step
                    seen.add(int(step))
                except Exception as error:
                    failures.append(error)
                    return

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for each in asking:
        each.start()
    for name in ("step-1", "step-2", "", "step-1"):
        begin, wanted = time.monotonic(), int(name[-1:] or 3)
        seen.clear()
        pin(folder, name)
        while wanted not in seen and not failures and time.monotonic() - begin < 20:
            time.sleep(0.002)
        assert wanted in seen
    done.set()
    for each in asking:
        each.join()
    assert failures == []


STACK = {
    "backend": "tiered",
    "options": {"tiers": [{"backend": "memory"}, {"backend": "memory"}], "refresh": {}},
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tables": {"item": {"storage": STACK}}}, "rows of `tables` stay"),
        ({"snapshots": "memory://a/served"}, "`snapshots` is a URL"),
        ({"server": {"reflection": True}}, "server.reflection"),
        ({}, ""),
    ],
)
def test_what_the_native_server_does_not_support_is_named(
    options: Any, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    executable = tmp_path / "native"
    monkeypatch.setattr(native_front_end, "EXECUTABLE", executable)
    config = ServingConfig.model_validate(options)
    assert "was built without the native server" in native_front_end.find_obstacle(config)
    executable.write_text("#!/bin/sh\necho libgrpc++ is missing >&2; exit 127\n")
    executable.chmod(0o755)
    assert "cannot start: libgrpc++ is missing" in native_front_end.find_obstacle(config)
    executable.write_text("#!/bin/sh\n")
    obstacle = native_front_end.find_obstacle(config)
    assert said in obstacle
    assert bool(said) == bool(obstacle)


@pytest.mark.parametrize(
    ("chosen", "is_built", "expected"),
    [
        ("auto", True, "native"),
        ("auto", False, "python"),
        ("native", True, "native"),
        ("native", False, "error"),
        ("python", True, "python"),
    ],
)
def test_the_configuration_chooses_the_server(
    chosen: str,
    is_built: bool,
    expected: str,
    folder: Folder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    executable = folder.path / "native"
    if is_built:
        executable.write_text("#!/bin/sh\n")
        executable.chmod(0o755)
    started: list[str] = []
    monkeypatch.setattr(native_front_end, "EXECUTABLE", executable)
    monkeypatch.setattr("os.execv", lambda *_: started.append("native"))
    monkeypatch.setattr("sparring_serve.cli.serve._run", lambda *_: started.append("python"))
    path = folder.path / "serving.yaml"
    path.write_text(f"snapshots: {folder.served}\nserver: {{front_end: {chosen}}}\n")
    code = main(["serve", str(path)])
    assert code == (2 if expected == "error" else 0)
    assert started[:1] == ([] if expected == "error" else [expected])
    has_reason = "answers calls: this installation" in caplog.text
    assert has_reason is (chosen == "auto" and not is_built)
    assert ("apt install libgrpc++-dev" in caplog.text) is has_reason
    names = {"native": "the native server", "python": "the server in Python"}
    if expected != "error":
        assert caplog.text.count(f"{names[expected]} answers calls: ") == 1


@pytest.mark.skipif(not native_front_end.EXECUTABLE.exists(), reason="no native server was built")
def test_the_native_server_names_what_prevents_its_start(folder: Folder, tmp_path: Path) -> None:
    taken = open_front_end("native", folder)
    try:
        port = int(taken.address.rpartition(":")[2])
        for options, said in (
            ({"health_port": port}, "cannot listen on 127.0.0.1:.* or set server.health_port"),
            ({"metrics_port": port}, "cannot listen on .*; choose another server.metrics_port"),
            ({"pin": "step-9"}, "server.pin=step-9 selects this version"),
        ):
            with pytest.raises(AssertionError, match=said):
                open_front_end("native", folder, **options)
    finally:
        taken.close()
    with pytest.raises(AssertionError, match=r"exit code 1: error: .*sparring publish RUN"):
        open_front_end("native", Folder(tmp_path / "empty"))


@pytest.mark.skipif(not native_front_end.EXECUTABLE.exists(), reason="no native server was built")
def test_the_native_server_ends_on_sigterm_while_it_loads(folder: Folder) -> None:
    # A file of tokens that never ends, in place of tables that take minutes.
    endless = folder.path / "tokens"
    os.mkfifo(endless)
    config = make_config(folder, token_file=endless)
    settings = folder.path / "settings"
    settings.write_text(
        native_front_end.encode_settings(config, ShardPosition(ONE_SHARD), "127.0.0.1:0", "info")
    )
    with subprocess.Popen(
        [native_front_end.EXECUTABLE, settings], stderr=subprocess.PIPE, text=True
    ) as process:
        begin = time.monotonic()
        while True:
            try:
                descriptor = os.open(endless, os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:  # the server has not opened it yet
                assert time.monotonic() - begin < 20
        process.terminate()
        assert process.wait(2) == 0
        assert process.stderr is not None
        assert "the server has ended while it was loading tables" in process.stderr.read()
        os.close(descriptor)


def test_versions_that_are_symbolic_links_are_not_served(serve: Serve, folder: Folder) -> None:
    elsewhere = folder.publish(2).rename(folder.path / "elsewhere")
    link = Path(folder.served, "step-2")
    link.symlink_to(elsewhere)
    server = serve()
    assert read_metrics(server)["version_step"] == 1
    link.rename(Path(folder.served, "step-9"))
    assert not server.refresh().is_new
    # A delta over a link is damaged.
    folder.publish(3)
    folder.publish(4, base=3)
    base = Path(folder.served, "step-3")
    base.rename(folder.path / "base")
    base.symlink_to(folder.path / "base")
    assert "symbolic link" in server.refresh().refused
    assert read_metrics(server)["version_step"] == 1
