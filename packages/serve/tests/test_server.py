"""The service on a port of loopback: gRPC, probes, tokens, TLS, refreshes, metrics, the end.

The file is long because most tests run with both servers, and some with tables in memory.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.errors import ConfigError, SnapshotDamagedError, StorageIOError
from sparring_serve import (
    AccessError,
    AsyncLookupClient,
    ClientConfig,
    LookupClient,
    LookupServer,
    ReplicasFailedError,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    TlsFiles,
)
from sparring_serve.testing import MemoryTables, RawConnection, framed_message
from sparring_serve.testing.front_ends import Folder, FrontEnd, call, pull, read_metrics
from sparring_serve.testing.memory_servers import ITEM, ROWS, open_memory_server
from sparring_serve.wire.fields import decode
from sparring_serve.wire.messages import SERVICE, RefreshReply
from sparring_serve.wire.open_inference import (
    HEALTH,
    INFERENCE,
    HealthReply,
    HealthRequest,
    InferReply,
    InferRequest,
    InferTensor,
    Live,
    ModelMetadata,
    ModelRequest,
    Ready,
    RequestedOutput,
    ServerMetadata,
    TensorContents,
)
from sparring_testing.processes.certificates import make_certificate

from .conftest import Serve

LONG = ClientConfig(deadline_seconds=20)

ServeMemory = Callable[..., LookupServer]


@pytest.fixture
def serve_memory(closing: ExitStack) -> ServeMemory:
    """Starts servers in Python of tables in memory."""
    return lambda *given, **server: closing.enter_context(open_memory_server(*given, **server))


def answer_of(server: FrontEnd, method: str, request: Any = b"", **options: Any) -> bytes:
    code, message, _, content = call(server.address, method, request, **{"timeout": 20, **options})
    assert code == "OK", message
    return content


def test_clients_of_both_kinds_get_the_rows(serve: Serve) -> None:
    server = serve()
    # More than one answer, and more than one call.
    config = ClientConfig(deadline_seconds=20, max_call_bytes=4096)
    ids = np.arange(-500, 500)
    with LookupClient(server.address, config) as client:
        answer = client.pull({"item": ids})

    async def pull() -> Any:
        async with AsyncLookupClient([server.address], config) as asking:
            assert (await asking.describe()).dims == {"item": 4, "user": 3}
            return await asking.pull({"item": ids})

    other = asyncio.run(pull())
    assert answer.found["item"].sum() == 100
    assert np.array_equal(answer.rows["item"], other.rows["item"])
    assert answer.rows["item"][507].tolist() == [1, 7, -7, 0.5]
    assert answer.versions == other.versions


def test_a_message_of_many_megabytes_is_sent_in_both_directions(serve: Serve) -> None:
    config = ClientConfig(deadline_seconds=60, max_call_bytes=32 << 20)
    with LookupClient(serve().address, config) as client:
        answer = client.pull({"item": np.arange(100, 900_100)}, missing="zero")
    assert answer.rows["item"].nbytes == 900_000 * 16
    assert not answer.rows["item"].any()


def test_bytes_that_are_not_a_message_are_rejected_by_all_methods(serve: Serve) -> None:
    server = serve()
    for method in (
        f"{SERVICE}/Pull", f"{SERVICE}/Describe", f"{SERVICE}/Refresh", f"{HEALTH}/Check",
        f"{INFERENCE}/ModelInfer", f"{INFERENCE}/ModelReady", f"{INFERENCE}/ModelMetadata",
    ):  # fmt: skip
        assert call(server.address, method, b"\x0a")[0] == "INVALID_ARGUMENT"
    assert call(server.address, f"{SERVICE}/Push")[0] == "UNIMPLEMENTED"


def status_of(address: str, service: str = "") -> int:
    """Returns the status that a health check finds; 0 if the server does not reply."""
    reply = call(address, f"{HEALTH}/Check", HealthRequest(service), timeout=5)
    return decode(HealthReply, reply[3]).status if reply[0] == "OK" else 0


def test_health_probes_know_the_services(serve: Serve) -> None:
    server = serve()
    names = ("", SERVICE, INFERENCE, "liveness")
    assert [status_of(server.address, each) for each in names] == [1] * 4
    code, _, _, _ = call(server.address, f"{HEALTH}/Check", HealthRequest("other"))
    assert code == "NOT_FOUND"


def test_health_probes_report_a_draining_server(serve_memory: ServeMemory) -> None:
    server = serve_memory()
    server.service.is_draining = True
    assert [status_of(server.address, each) for each in ("", SERVICE, "liveness")] == [2, 2, 1]
    assert decode(Live, call(server.address, f"{INFERENCE}/ServerLive")[3]).live
    assert not decode(Ready, call(server.address, f"{INFERENCE}/ServerReady")[3]).ready
    with (
        LookupClient(server.address, ClientConfig(deadline_seconds=0.5)) as client,
        pytest.raises(ReplicasFailedError, match="UNAVAILABLE this server is draining"),
    ):
        client.pull({"item": [1]})


def test_a_table_is_a_model_of_the_open_inference_protocol(serve: Serve) -> None:
    server = serve()
    with LookupClient(server.address, LONG) as client:
        version = client.pull({"item": [1]}).versions[0].hash

    def infer(**fields: Any) -> InferReply:
        request = InferRequest("item", **fields)
        return decode(
            InferReply, answer_of(server, f"{INFERENCE}/ModelInfer", request, timeout=None)
        )

    ids = np.array([7, -1, 99], np.int64)
    raw = infer(
        id="a", inputs=(InferTensor("ids", "INT64", (3, 1)),), raw_input_contents=(ids.tobytes(),)
    )
    assert (raw.model_name, raw.model_version, raw.id) == ("item", version, "a")
    assert [(each.name, each.datatype, each.shape) for each in raw.outputs] == [
        ("rows", "FP32", (3, 1, 4)),
        ("found", "BOOL", (3, 1)),
    ]
    rows = np.frombuffer(raw.raw_output_contents[0], np.float32).reshape(3, 4)
    assert rows[0].tolist() == [1, 7, -7, 0.5]
    assert bytes(raw.raw_output_contents[1]) == b"\x01\x00\x01"
    typed = infer(inputs=(InferTensor("ids", "INT64", (3,), TensorContents((7, -1, 99))),))
    assert typed.raw_output_contents == raw.raw_output_contents
    one = infer(
        inputs=(InferTensor("ids", "INT64", (3,)),),
        outputs=(RequestedOutput("found"),),
        raw_input_contents=(ids.tobytes(),),
    )
    assert [each.name for each in one.outputs] == ["found"]
    for name in ("item", "itm"):
        ready = decode(Ready, answer_of(server, f"{INFERENCE}/ModelReady", ModelRequest(name)))
        assert ready.ready is (name == "item")
    described = decode(
        ModelMetadata, answer_of(server, f"{INFERENCE}/ModelMetadata", ModelRequest("item"))
    )
    assert (described.versions, described.outputs[0].shape) == ((version,), (-1, 4))
    assert (
        decode(ServerMetadata, answer_of(server, f"{INFERENCE}/ServerMetadata")).name == "sparring"
    )


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


def test_a_failed_check_for_a_newer_version_is_reported(
    serve_memory: ServeMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = MemoryTables([ITEM], ROWS)
    server = serve_memory(tables)

    def refresh() -> RefreshReply:
        return decode(RefreshReply, call(server.address, f"{SERVICE}/Refresh")[3])

    tables.damage_next(SnapshotDamagedError("a file is damaged"))
    assert refresh().refused == "a file is damaged"
    monkeypatch.setattr(tables, "refresh", lambda: 1 // 0)
    assert refresh().refused.startswith("ZeroDivisionError in this server")
    assert server.metrics.value("refreshes_total", result="refused") == 2


def test_calls_in_progress_are_completed_when_the_server_ends(serve: Serve) -> None:
    server = serve()
    with RawConnection(server.address) as connection:
        stream = connection.begin(f"/{SERVICE}/Describe")
        connection.send(stream, framed_message(b"")[:3])
        assert status_of(server.address) == 1
        ending = threading.Thread(target=server.close)
        ending.start()
        begin = time.monotonic()
        while status_of(server.health_address) != 2:
            assert time.monotonic() - begin < 5
        connection.send(stream, framed_message(b"")[3:], is_last=True)
        assert connection.status(stream, 10) == 0
    ending.join()
    assert call(server.address, f"{HEALTH}/Check", timeout=1)[0] == "UNAVAILABLE"


def test_calls_in_flight_end_before_the_server_does(serve_memory: ServeMemory) -> None:
    tables = MemoryTables([ITEM], ROWS)
    entered, go_on = threading.Event(), threading.Event()
    lookup = tables.lookup

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert go_on.wait(20)
        return lookup(*arguments)

    tables.lookup = slow  # type: ignore[method-assign]
    server = serve_memory(tables)
    answers: list[Any] = []
    with LookupClient(server.address, ClientConfig(deadline_seconds=9)) as client:
        asking = threading.Thread(target=lambda: answers.append(client.pull({"item": [7]})))
        asking.start()
        assert entered.wait(20)
        closing = threading.Thread(target=server.close)
        closing.start()
        while not server.service.is_draining:
            pass
        assert not tables.is_closed
        go_on.set()
        asking.join()
        closing.join()
    assert answers[0].rows["item"][0].tolist() == [1, 7, -7, 0.5]
    assert tables.is_closed
    assert status_of(server.address) == 0


def test_a_bug_is_reported_by_its_kind_and_logged(serve_memory: ServeMemory, caplog: Any) -> None:
    tables = MemoryTables([ITEM], ROWS)
    server = serve_memory(tables)

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("secret of this server")

    tables.lookup = broken  # type: ignore[method-assign]
    with (
        LookupClient(server.address, LONG) as client,
        pytest.raises(ReplicasFailedError, match="INTERNAL ZeroDivisionError") as caught,
    ):
        client.pull({"item": [1]})
    assert "secret" not in str(caught.value)
    assert "secret of this server" in caplog.text
    assert server.metrics.value("pulls_total", table="item", code="INTERNAL") == 1
    assert server.metrics.value("pulls_total", code="OK") == 0


def test_plain_text_is_for_loopback_only() -> None:
    position = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
    with pytest.raises(
        ConfigError, match=r"plain text is allowed for loopback addresses only, found 0.0.0.0"
    ):
        LookupServer(MemoryTables([ITEM], ROWS), ServingConfig(), position, "0.0.0.0:0")
    with (
        LookupClient("192.0.2.1:1") as client,
        pytest.raises(ConfigError, match=r"set client.insecure=true"),
    ):
        client.pull({"item": [1]})
    with (
        LookupClient("localhost") as client,
        pytest.raises(ConfigError, match="must be host:port, such as localhost:7433"),
    ):
        client.pull({"item": [1]})


def test_a_port_that_is_taken_is_named(serve_memory: ServeMemory) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        position = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StorageIOError, match=f"cannot listen on {address}"):
            LookupServer(MemoryTables([ITEM], ROWS), ServingConfig(), position, address)


def write(path: Path, text: str) -> Path:
    """Replaces a file as administrators should: whole."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
    return path


PULL, ADMIN, OTHER = "p" * 16, "a" * 16, "o" * 16
MANY_TOKENS = "".join(f"pull {number:016}\n" for number in range(1001))


def test_tokens_have_roles_and_are_read_again(serve: Serve, tmp_path: Path) -> None:
    tokens = write(tmp_path / "tokens", f"# who\npull {PULL}\nadmin {ADMIN}\n")
    server = serve(token_file=tokens)

    def code(method: str, token: str) -> str:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        request = pull(("item", [1])) if method == "Pull" else b""
        return call(server.address, f"{SERVICE}/{method}", request, metadata=metadata)[0]

    assert code("Pull", "") == code("Pull", OTHER) == "UNAUTHENTICATED"
    assert code("ReadModel", "") == "UNAUTHENTICATED"
    assert code("Pull", PULL) == code("Describe", ADMIN) == code("Refresh", ADMIN) == "OK"
    assert code("ReadModel", PULL) == "OK"
    assert code("Refresh", PULL) == "PERMISSION_DENIED"
    # An invalid file leaves the previous tokens in use.
    write(tokens, "pull short\n")
    assert code("Pull", PULL) == "OK"
    write(tokens, f"pull {OTHER}\nadmin {ADMIN}\n")
    assert code("Pull", PULL) == "UNAUTHENTICATED"
    assert code("Pull", OTHER) == "OK"
    # Probes need none.
    assert call(server.address, f"{HEALTH}/Check")[0] == "OK"
    mine = write(tmp_path / "mine", f"{PULL}\n")
    with LookupClient(server.address, ClientConfig(deadline_seconds=20, token_file=mine)) as client:
        with pytest.raises(AccessError, match="no valid token"):
            client.pull({"item": [1]})
        write(mine, OTHER)  # the client reads its file again
        assert client.pull({"item": [1]}).found["item"].all()
    assert read_metrics(server)['rejected_total{reason="token"}'] >= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 tokens, must have 1 to 1,000; add a line"),
        (MANY_TOKENS, "has 1,001 tokens, must have 1 to 1,000; remove unused tokens"),
        (f"root {PULL}\n", ":1: must be a role .pull, push or admin., a blank"),
        ("pull\n", ":1: must be a role"),
        ("pull short\n", "16 to 4,096 characters"),
        (f"pull {PULL * 300}\n", "16 to 4,096 characters"),
        ("pull påßwort-that-is-long\n", "must be ASCII"),
    ],
)
def test_wrong_files_of_tokens_are_rejected_without_their_tokens(
    serve_memory: ServeMemory, tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        serve_memory(token_file=write(tmp_path / "tokens", text))
    assert PULL not in str(caught.value)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        serve_memory(token_file=tmp_path / "none")


def test_a_certificate_without_its_key_is_rejected() -> None:
    with pytest.raises(ValueError, match="only one of certificate_file and key_file"):
        TlsFiles(certificate_file=Path("a.pem"))


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


def test_metrics_are_read_over_http(serve: Serve) -> None:
    server = serve()
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [7, -1]})
    counted = read_metrics(server)
    expected = {
        'pulls_total{code="OK",table="item"}': 1,
        "ids_total": 2,
        "found_total": 1,
        "pull_seconds_count": 1,
        "version_step": 1,
    }
    assert {name: counted[name] for name in expected} == expected


def test_bytes_in_flight_are_limited_and_do_not_delay_the_end(serve: Serve) -> None:
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
    begin = time.monotonic()
    while read_metrics(server)["bytes_in_flight"]:  # until the server knows that replies were sent
        assert time.monotonic() - begin < 5
    begin = time.monotonic()
    server.close()
    assert time.monotonic() - begin < 5


def test_a_taken_metrics_port_is_named_and_no_thread_remains(serve_memory: ServeMemory) -> None:
    pytest.importorskip("prometheus_client")
    server = serve_memory(metrics_port=0)
    assert server.exporter is not None
    before = threading.active_count()
    with pytest.raises(StorageIOError, match=r"choose another server\.metrics_port"):
        serve_memory(metrics_port=server.exporter.port)
    assert threading.active_count() <= before
