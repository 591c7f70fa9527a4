"""Both servers of the role inference, over real ports: the one in Python, and the native process.

The file is long because each test runs with both servers, which share its fixtures.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring.contracts import TableConfig
from sparring_cli.application import main
from sparring_serve import (
    AccessError,
    ClientConfig,
    LookupClient,
    ReplicasFailedError,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    TlsFiles,
)
from sparring_serve.server import native_front_end
from sparring_serve.testing import RawConnection, framed_message
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import (
    SERVICE,
    GateMessage,
    RefreshReply,
)
from sparring_serve.wire.open_inference import (
    HEALTH,
    INFERENCE,
    HealthReply,
)

from .front_ends import (
    ITEM,
    KEYS,
    USER,
    Folder,
    FrontEnd,
    call,
    open_front_end,
    pull,
    read_metrics,
)
from .test_server import make_certificate

LONG = ClientConfig(deadline_seconds=20)
UNAUTHENTICATED, CANCELLED, INVALID_ARGUMENT, OK = 16, 1, 3, 0
NATIVE = pytest.param(
    "native",
    marks=pytest.mark.skipif(
        not native_front_end.EXECUTABLE.exists(),
        reason="the native server was not built: install libgrpc++-dev and pkg-config",
    ),
)
KINDS = ["python", NATIVE]

Serve = Callable[..., FrontEnd]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path)
    made.publish(1)
    return made


@pytest.fixture
def open_servers(folder: Folder) -> Iterator[Serve]:
    """Starts a server of the given kind."""
    started: list[FrontEnd] = []

    def start(kind: str, position: ShardPosition | None = None, **options: Any) -> FrontEnd:
        started.append(open_front_end(kind, folder, position, **options))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture(params=KINDS)
def serve(request: pytest.FixtureRequest, open_servers: Serve) -> Serve:
    """Starts servers of one kind; the test runs with both."""
    return lambda *arguments, **options: open_servers(request.param, *arguments, **options)


def test_keys_of_other_shards_are_rejected_with_the_shard_map(serve: Serve) -> None:
    shards = ShardReplicas((("127.0.0.1:1",), ("127.0.0.1:2",)))
    servers = [serve(ShardPosition(shards, number)) for number in (0, 1)]
    with LookupClient([[each.address] for each in servers], LONG) as client:
        assert client.pull({"item": KEYS}).rows["item"][:, 1].tolist() == KEYS.tolist()
    code, message, attached, _ = call(servers[0].address, f"{SERVICE}/Pull", pull(("item", KEYS)))
    assert (code, attached) == ("FAILED_PRECONDITION", shards.to_bytes())
    assert "and shard 1 of 2 has the partitions 0 to 2047; use the attached shard map" in message


def test_deadlines_are_required_and_limited(serve: Serve) -> None:
    server = serve()
    for timeout, given in ((None, "none"), (60, r"\d+(\.\d)? s")):
        code, message, _, _ = call(
            server.address, f"{SERVICE}/Pull", pull(("item", [1])), timeout=timeout
        )
        assert code == "INVALID_ARGUMENT"
        assert re.search(f"must have a deadline of at most 10 s, found {given}; set one", message)
    assert call(server.address, f"{SERVICE}/Describe", timeout=None)[0] == "OK"


def test_rows_that_are_too_old_are_rejected(serve: Serve) -> None:
    request = pull(("item", [1]), max_staleness_seconds=1e-6)
    code, message, _, _ = call(serve().address, f"{SERVICE}/Pull", request)
    assert code == "FAILED_PRECONDITION"
    assert "max_staleness_seconds is 1e-06" in message


def test_newer_versions_are_served_after_hints(serve: Serve, folder: Folder) -> None:
    server = serve()

    def refresh() -> RefreshReply:
        return decode(RefreshReply, call(server.address, f"{SERVICE}/Refresh")[3])

    with LookupClient(server.address, LONG) as client:
        first = client.pull({"item": [7]}).versions[0].hash
        folder.publish(2, base=1)
        assert refresh().is_new
        assert not refresh().is_new
        assert client.pull({"item": [7, 70]}).rows["item"][:, 0].tolist() == [2, 1]
        assert client.pull({"item": [7]}, version=first).rows["item"][0, 0] == 1
        damaged = folder.publish(3)
        [rows] = damaged.glob("rows.item.*")
        rows.chmod(0o644)
        rows.write_bytes(rows.read_bytes()[:-1] + b"!")
        assert "damaged" in refresh().refused
        assert client.describe().shards[0].not_fresh == refresh().refused
        assert read_metrics(server)["is_behind"] == 1
        folder.publish(4)
        assert refresh().is_new
        assert client.pull({"item": [7]}).rows["item"][0, 0] == 4
        assert client.describe().shards[0].not_fresh == ""
    counted = read_metrics(server)
    results = [counted[f'refreshes_total{{result="{each}"}}'] for each in ("taken", "refused")]
    assert results == [2, 2]
    assert counted["version_step"] == 4


def test_newer_versions_are_found_by_polling_and_not_by_pinned_servers(
    serve: Serve, folder: Folder
) -> None:
    polling, pinned = serve(poll_seconds=0.05), serve(poll_seconds=0.05, pin="step-1")
    folder.publish(2)
    begin = time.monotonic()
    while read_metrics(polling)["version_step"] != 2:
        assert time.monotonic() - begin < 20
    assert read_metrics(pinned)["version_step"] == 1
    assert 'refreshes_total{result="unchanged"}' not in read_metrics(pinned)


def test_the_newest_intact_version_is_served_until_a_newer_one_is(
    serve: Serve, folder: Folder
) -> None:
    manifest = folder.publish(2) / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes()[:-2])
    server = serve()
    assert read_metrics(server)["is_behind"] == 1
    assert decode(RefreshReply, call(server.address, f"{SERVICE}/Refresh")[3]).refused
    with LookupClient(server.address, LONG) as client:
        assert client.pull({"item": [7]}).rows["item"][0, 0] == 1
        folder.publish(3)
        assert decode(RefreshReply, call(server.address, f"{SERVICE}/Refresh")[3]).is_new
        assert client.pull({"item": [7]}).rows["item"][0, 0] == 3
    assert read_metrics(server)["is_behind"] == 0


def test_other_tables_are_rejected_after_a_damaged_version(serve: Serve, folder: Folder) -> None:
    manifest = folder.publish(2) / "manifest.json"
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes()[:-2])
    server = serve()
    folder.publish(3, tables=(ITEM, USER, TableConfig("zone", 3)))
    refused = decode(RefreshReply, call(server.address, f"{SERVICE}/Refresh")[3]).refused
    assert refused == (
        "serving snapshot step-3 has the tables item, user, zone, but item, user are served; restart "
        "the server"
    )
    assert call(server.address, f"{SERVICE}/Pull", pull(("zone", [1])))[0] == "NOT_FOUND"
    assert call(server.address, f"{SERVICE}/Pull", pull(("item", [1])))[0] == "OK"


def test_a_newer_version_is_warmed_up_with_requested_ids(serve: Serve, folder: Folder) -> None:
    server = serve(verify="open", warm_up_seconds=60)
    with LookupClient(server.address, LONG) as client:
        for _ in range(3):
            client.pull({"item": KEYS[:40], "user": KEYS[:7]})
    folder.publish(2)
    assert decode(RefreshReply, call(server.address, f"{SERVICE}/Refresh")[3]).is_new
    counted = read_metrics(server)
    assert counted["warm_up_ids"] == 47
    assert counted["warm_up_bytes"] > 0
    assert 0 < counted["warm_up_seconds"] < 60


def test_replies_have_one_version_while_versions_arrive(serve: Serve, folder: Folder) -> None:
    server = serve(poll_seconds=0.01)
    seen, failures, done = set(), [], threading.Event()

    def ask() -> None:
        with LookupClient(server.address, LONG) as client:
            while not done.is_set():
                try:
                    answer = client.pull({"item": KEYS, "user": KEYS})
                    [step] = {*answer.rows["item"][:, 0], *answer.rows["user"][:, 0]}
                    seen.add(int(step))
                except Exception as error:
                    failures.append(error)
                    return

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for each in asking:
        each.start()
    for step in range(2, 6):
        folder.publish(step)
    begin = time.monotonic()
    while 5 not in seen and not failures and time.monotonic() - begin < 20:
        time.sleep(0.01)
    done.set()
    for each in asking:
        each.join()
    assert failures == []
    assert 5 in seen


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
        (Path(folder.served) / "gate.json").write_text("{")
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


PULL, ADMIN, OTHER = "p" * 16, "a" * 16, "o" * 16


def write(path: Path, text: str) -> Path:
    """Replaces a file as administrators should: whole."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return path


def test_tokens_have_roles_and_are_read_again(serve: Serve, tmp_path: Path) -> None:
    tokens = write(tmp_path / "tokens", f"# who\npull {PULL}\nadmin {ADMIN}\n")
    server = serve(token_file=tokens)

    def code(method: str, token: str) -> str:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        request = pull(("item", [1])) if method == "Pull" else b""
        return call(server.address, f"{SERVICE}/{method}", request, metadata=metadata)[0]

    assert code("Pull", "") == code("Pull", OTHER) == "UNAUTHENTICATED"
    assert code("Pull", PULL) == code("Describe", ADMIN) == code("Refresh", ADMIN) == "OK"
    assert code("Refresh", PULL) == "PERMISSION_DENIED"
    # An invalid file leaves the previous tokens in use.
    write(tokens, "pull short\n")
    assert code("Pull", PULL) == "OK"
    write(tokens, f"pull {OTHER}\nadmin {ADMIN}\n")
    assert code("Pull", PULL) == "UNAUTHENTICATED"
    assert code("Pull", OTHER) == "OK"
    # Probes need none.
    assert call(server.address, f"{HEALTH}/Check")[0] == "OK"
    with LookupClient(server.address, LONG) as client, pytest.raises(AccessError, match="no valid"):
        client.pull({"item": [1]})
    assert read_metrics(server)['rejected_total{reason="token"}'] >= 3


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_tls_authenticates_both_sides_and_files_are_read_again(
    serve: Serve, tmp_path: Path
) -> None:
    mine, theirs = (make_certificate(tmp_path, name) for name in ("server", "client"))
    files = TlsFiles(certificate_file=mine, key_file=mine.with_suffix(".key"), ca_file=theirs)
    server = serve(tls=files)

    def config(ca: Path, own: Path | None) -> ClientConfig:
        key = None if own is None else own.with_suffix(".key")
        tls = TlsFiles(ca_file=ca, certificate_file=own, key_file=key)
        return ClientConfig(deadline_seconds=20, tls=tls)

    with LookupClient(server.address, config(mine, theirs)) as client:
        assert client.pull({"item": [1]}).found["item"].all()
    for wrong in (config(theirs, theirs), config(mine, None), config(mine, mine), ClientConfig()):
        with LookupClient(server.address, wrong) as client, pytest.raises(ReplicasFailedError):
            client.pull({"item": [1]}, deadline_seconds=0.5)
    # A replaced certificate is used for later connections.
    other = make_certificate(tmp_path / "new", "server")
    other.with_suffix(".key").replace(mine.with_suffix(".key"))
    other.replace(mine)
    with LookupClient(server.address, config(mine, theirs)) as client:
        assert client.pull({"item": [1]}).found["item"].all()
    # Without a file of trusted certificates, clients need no certificate.
    open_to_all = serve(tls=files.model_copy(update={"ca_file": None}))
    with LookupClient(open_to_all.address, config(mine, None)) as client:
        assert client.pull({"item": [1]}).found["item"].all()
    # The health port is in plain text, and answers nothing else.
    assert call(server.health_address, f"{HEALTH}/Check")[3] == b"\x08\x01"
    for path in (f"{SERVICE}/Pull", f"{SERVICE}/Describe", f"{INFERENCE}/ModelInfer"):
        assert call(server.health_address, path)[0] == "UNIMPLEMENTED"


FRAMED = framed_message(encode(pull(("item", [0]))))


def is_healthy(server: FrontEnd) -> bool:
    return call(server.address, f"{HEALTH}/Check", timeout=5)[3] == b"\x08\x01"


def test_silent_calls_are_rejected_or_ended(serve: Serve, tmp_path: Path) -> None:
    tokens = write(tmp_path / "tokens", f"pull {PULL}")
    server = serve(token_file=tokens, max_deadline_seconds=0.4)
    with RawConnection(server.address) as connection:
        methods = ("Pull", "Describe", "Push", "Save", "Refresh")
        streams = [connection.begin(f"/{SERVICE}/{methods[each % 5]}") for each in range(40)]
        assert [connection.status(each, 10) for each in streams] == [UNAUTHENTICATED] * 40
        for path, token in (
            (f"/{SERVICE}/Describe", PULL), (f"/{INFERENCE}/ModelInfer", PULL), (f"/{HEALTH}/Check", ""),
        ):  # fmt: skip
            assert connection.status(connection.begin(path, token=token), 10) == CANCELLED
        assert connection.status(connection.begin(f"/{SERVICE}/Pull", token=PULL), 10) == 3
    assert is_healthy(server)


@pytest.mark.parametrize("request_id", [b"a\x01b", b"\xc3\xa9", b"\xff"])
def test_request_ids_that_grpc_cannot_send_are_replaced(serve: Serve, request_id: bytes) -> None:
    server = serve()
    with RawConnection(server.address) as connection:
        stream = connection.begin(f"/{SERVICE}/Refresh", timeout="9S", request_id=request_id)
        connection.send(stream, framed_message(b""), is_last=True)
        assert connection.status(stream, 10) == OK
    assert is_healthy(server)


def test_messages_that_arrive_partly_late_or_not_at_all(serve: Serve) -> None:
    server = serve()
    with RawConnection(server.address) as connection:
        empty = connection.begin(f"/{SERVICE}/Pull", timeout="5S", is_last=True)
        assert connection.status(empty, 10) == INVALID_ARGUMENT
        for _ in range(20):
            connection.cancel(connection.begin(f"/{SERVICE}/Pull", timeout="9S"))
        half = connection.begin(f"/{SERVICE}/Pull", timeout="300m")
        connection.send(half, FRAMED[:-3])
        assert connection.status(half, 10) in (None, 1, 4)
        slow = connection.begin(f"/{SERVICE}/Pull", timeout="9S")
        for position in range(len(FRAMED)):
            is_last = position == len(FRAMED) - 1
            connection.send(slow, FRAMED[position : position + 1], is_last=is_last)
        assert connection.status(slow, 10) == OK
    gone = RawConnection(server.address)
    gone.begin(f"/{SERVICE}/Pull", timeout="9S")
    gone.close()
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [0]})
    assert read_metrics(server)['pulls_total{code="CANCELLED",table=""}'] >= 1


def test_a_busy_server_rejects_calls_and_stays_healthy(serve: Serve) -> None:
    server = serve(threads=1)
    with RawConnection(server.address) as connection:
        for _ in range(16):
            connection.begin(f"/{SERVICE}/Pull", timeout="2S")
        for _ in range(100):
            connection.begin(f"/{HEALTH}/Check")
        time.sleep(0.3)  # until they have arrived
        code, message, _, _ = call(server.address, f"{SERVICE}/Pull", pull(("item", [1])))
        assert code == "RESOURCE_EXHAUSTED"
        assert "already answers or queues 16 calls" in message
        counted = read_metrics(server)
        assert counted['rejected_total{reason="calls"}'] >= 1
        assert call(server.health_address, f"{HEALTH}/Check")[0] in ("OK", "RESOURCE_EXHAUSTED")
    begin = time.monotonic()
    while not is_healthy(server):
        assert time.monotonic() - begin < 10


def test_bytes_in_flight_are_limited(serve: Serve) -> None:
    server = serve(max_bytes_in_flight=1 << 16)
    codes: list[str] = []
    request = pull(("item", np.arange(500_000)))

    def ask() -> None:
        codes.append(call(server.address, f"{SERVICE}/Pull", request)[0])

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for each in asking:
        each.start()
    for each in asking:
        each.join()
    # One large call is always admitted.
    assert "OK" in codes
    assert set(codes) <= {"OK", "RESOURCE_EXHAUSTED"}
    assert read_metrics(server)["bytes_in_flight"] == 0


def test_calls_in_progress_are_completed_when_the_server_ends(serve: Serve) -> None:
    server = serve()
    with RawConnection(server.address) as connection:
        stream = connection.begin(f"/{SERVICE}/Describe")
        connection.send(stream, FRAMED[:3])
        assert is_healthy(server)
        ending = threading.Thread(target=server.close)
        ending.start()
        begin = time.monotonic()
        while ending.is_alive() and time.monotonic() - begin < 5:
            reply = call(server.health_address, f"{HEALTH}/Check", timeout=5)
            if reply[3] and decode(HealthReply, reply[3]).status == 2:
                break
        else:
            pytest.fail("the server did not become unready")
        connection.send(stream, framed_message(b"")[3:], is_last=True)
        assert connection.status(stream, 10) == OK
    ending.join()
    assert call(server.address, f"{HEALTH}/Check", timeout=1)[0] == "UNAVAILABLE"


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
