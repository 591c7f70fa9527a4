"""The service on a port of loopback: gRPC, probes, tokens, TLS, refreshes, metrics, the end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring.errors import ConfigError, SnapshotDamagedError, StorageIOError
from sparring_serve import (
    AccessError,
    AsyncLookupClient,
    ClientConfig,
    LookupClient,
    LookupServer,
    ReplicasFailedError,
    ServerConfig,
    ServingConfig,
    ShardPosition,
    ShardReplicas,
    TlsFiles,
)
from sparring_serve.testing import MemoryTables
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import (
    SERVICE,
    RefreshReply,
    VersionMessage,
)
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

ITEM = TableConfig("item", 4, seed=3)
ROWS = {"item": {key: [1, key, -key, 0.5] for key in range(100)}}
LONG = ClientConfig(deadline_seconds=20)

Serve = Callable[..., LookupServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers of tables in memory on free ports."""
    started: list[LookupServer] = []

    def start(tables: MemoryTables | None = None, **options: Any) -> LookupServer:
        config = ServingConfig(server=ServerConfig(**{"poll_seconds": 3600, **options}))
        served = MemoryTables([ITEM], ROWS) if tables is None else tables
        position = ShardPosition(ShardReplicas((("127.0.0.1:1",),)))
        started.append(LookupServer(served, config, position, "127.0.0.1:0"))
        return started[-1]

    yield start
    for each in started:
        each.close()


def call(server: LookupServer, method: str, request: Any = b"", **options: Any) -> bytes:
    with grpc.insecure_channel(server.address) as channel:
        content = request if isinstance(request, bytes) else encode(request)
        answer: bytes = channel.unary_unary(f"/{method}")(content, **{"timeout": 20, **options})
        return answer


def code_of(server: LookupServer, method: str, request: Any = b"", **options: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(server, method, request, **options)
    code: str = caught.value.code().name
    return code


def test_clients_of_both_kinds_get_the_rows(serve: Serve) -> None:
    server = serve()
    # More than one answer, and more than one call.
    config = ClientConfig(deadline_seconds=20, max_call_bytes=4096)
    ids = np.arange(-500, 500)
    with LookupClient(server.address, config) as client:
        answer = client.pull({"item": ids})

    async def pull() -> Any:
        async with AsyncLookupClient([server.address], config) as asking:
            assert (await asking.describe()).dims == {"item": 4}
            return await asking.pull({"item": ids})

    other = asyncio.run(pull())
    assert answer.found["item"].sum() == 100
    assert np.array_equal(answer.rows["item"], other.rows["item"])
    assert answer.rows["item"][507].tolist() == [1, 7, -7, 0.5]
    assert answer.versions == other.versions


def test_a_message_of_many_megabytes_is_sent_in_both_directions(serve: Serve) -> None:
    tables = MemoryTables([TableConfig("wide", 16)], {})
    config = ClientConfig(deadline_seconds=60, max_call_bytes=32 << 20)
    with LookupClient(serve(tables).address, config) as client:
        answer = client.pull({"wide": np.arange(400_000)}, missing="zero")
    assert answer.rows["wide"].nbytes == 400_000 * 64
    assert not answer.rows["wide"].any()


def test_bytes_that_are_not_a_message_are_rejected_by_all_methods(serve: Serve) -> None:
    server = serve()
    for method in (
        f"{SERVICE}/Pull", f"{SERVICE}/Describe", f"{SERVICE}/Refresh", f"{HEALTH}/Check",
        f"{INFERENCE}/ModelInfer", f"{INFERENCE}/ModelReady", f"{INFERENCE}/ModelMetadata",
    ):  # fmt: skip
        assert code_of(server, method, b"\x0a", timeout=5) == "INVALID_ARGUMENT"
    assert code_of(server, f"{SERVICE}/Push") == "UNIMPLEMENTED"


def test_health_probes_report_a_draining_server(serve: Serve) -> None:
    server = serve()

    def status(service: str) -> int:
        answer = call(server, f"{HEALTH}/Check", HealthRequest(service))
        return decode(HealthReply, answer).status

    assert [status(each) for each in ("", SERVICE, INFERENCE)] == [1, 1, 1]
    assert code_of(server, f"{HEALTH}/Check", HealthRequest("other")) == "NOT_FOUND"
    server.service.is_draining = True
    assert [status(each) for each in ("", SERVICE)] == [2, 2]
    assert decode(Live, call(server, f"{INFERENCE}/ServerLive")).live
    assert not decode(Ready, call(server, f"{INFERENCE}/ServerReady")).ready
    with (
        LookupClient(server.address, LONG) as client,
        pytest.raises(ReplicasFailedError, match="UNAVAILABLE this server is draining"),
    ):
        client.pull({"item": [1]})


def test_a_table_is_a_model_of_the_open_inference_protocol(serve: Serve) -> None:
    server = serve()
    version = server.service.tables.versions()[0].hash

    def infer(**fields: Any) -> InferReply:
        answer = call(
            server, f"{INFERENCE}/ModelInfer", InferRequest("item", **fields), timeout=None
        )
        return decode(InferReply, answer)

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
    assert decode(Ready, call(server, f"{INFERENCE}/ModelReady", ModelRequest("item"))).ready
    assert not decode(Ready, call(server, f"{INFERENCE}/ModelReady", ModelRequest("itm"))).ready
    described = decode(
        ModelMetadata, call(server, f"{INFERENCE}/ModelMetadata", ModelRequest("item"))
    )
    assert (described.versions, described.outputs[0].shape) == ((version,), (-1, 4))
    assert decode(ServerMetadata, call(server, f"{INFERENCE}/ServerMetadata")).name == "sparring"


def test_a_hint_loads_the_newer_version_and_reports_rejected_ones(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = MemoryTables([ITEM], ROWS)
    server = serve(tables)
    new = tables.publish(2, {"item": {7: [2, 2, 2, 2]}})

    def refresh() -> RefreshReply:
        return decode(RefreshReply, call(server, f"{SERVICE}/Refresh", timeout=5))

    assert refresh() == RefreshReply(VersionMessage("", 2, new.hash), True)
    assert refresh() == RefreshReply(VersionMessage("", 2, new.hash), False)
    tables.damage_next(SnapshotDamagedError("a file is damaged"))
    tables.publish(4, {"item": {7: [4, 4, 4, 4]}})
    assert refresh().refused == "a file is damaged"
    with LookupClient(server.address, LONG) as client:
        assert client.pull({"item": [7]}).rows["item"][0, 0] == 2
        assert refresh().is_new
        assert client.pull({"item": [7]}).rows["item"][0, 0] == 4
    with monkeypatch.context() as patched:
        patched.setattr(tables, "refresh", lambda: 1 // 0)
        assert refresh().refused.startswith("ZeroDivisionError in this server")
    counted = {
        result: server.metrics.value("refreshes_total", result=result)
        for result in ("taken", "unchanged", "refused")
    }
    assert counted == {"taken": 2, "unchanged": 1, "refused": 2}


def test_a_server_looks_for_newer_versions_by_itself(serve: Serve) -> None:
    tables = MemoryTables([ITEM], ROWS)
    taken = threading.Event()
    refresh = tables.refresh

    def noted() -> bool:
        is_new = refresh()
        if is_new:
            taken.set()
        return is_new

    tables.refresh = noted  # type: ignore[method-assign]
    server = serve(tables, poll_seconds=0.01)
    tables.publish(2, {})
    assert taken.wait(20)
    assert server.service.tables.versions()[0].step == 2


def test_a_pinned_server_only_accepts_hints(serve: Serve) -> None:
    tables = MemoryTables([ITEM], ROWS)
    server = serve(tables, poll_seconds=0.01, pin="step-1")
    tables.publish(2, {})
    server.refresher.close()
    assert server.metrics.value("refreshes_total") == 0


def test_calls_in_flight_end_before_the_server_does(serve: Serve) -> None:
    tables = MemoryTables([ITEM], ROWS)
    entered, go_on = threading.Event(), threading.Event()
    lookup = tables.lookup

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert go_on.wait(20)
        return lookup(*arguments)

    tables.lookup = slow  # type: ignore[method-assign]
    server = serve(tables)
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
    with pytest.raises(grpc.RpcError):
        call(server, f"{HEALTH}/Check", timeout=1)


def test_a_bug_is_reported_by_its_kind_and_logged(serve: Serve, caplog: Any) -> None:
    tables = MemoryTables([ITEM], ROWS)
    server = serve(tables)

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


def test_a_port_that_is_taken_is_named(serve: Serve) -> None:
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
    mine = write(tmp_path / "mine", f"{OTHER}\n")
    server = serve(token_file=tokens)

    def refresh(token: str) -> Any:
        metadata = (("authorization", f"Bearer {token}"),)
        return call(server, f"{SERVICE}/Refresh", metadata=metadata, timeout=5)

    with LookupClient(server.address, ClientConfig(deadline_seconds=20, token_file=mine)) as client:
        with pytest.raises(AccessError, match="no valid token"):
            client.pull({"item": [1]})
        write(mine, PULL)
        assert client.pull({"item": [1]}).found["item"].all()
        # An invalid file leaves the previous tokens in use.
        write(tokens, "pull short\n")
        assert client.pull({"item": [1]}).found["item"].all()
        write(tokens, f"pull {OTHER}\nadmin {ADMIN}\n")
        with pytest.raises(AccessError):
            client.pull({"item": [1]})
    assert code_of(server, f"{SERVICE}/Describe") == "UNAUTHENTICATED"
    with pytest.raises(grpc.RpcError, match="needs a token of the role admin, found the role pull"):
        refresh(OTHER)
    assert refresh(ADMIN)
    # Probes need none.
    assert call(server, f"{HEALTH}/Check")
    assert call(server, f"{INFERENCE}/ServerLive")


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
    serve: Serve, tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        serve(token_file=write(tmp_path / "tokens", text))
    assert PULL not in str(caught.value)
    with pytest.raises(ConfigError, match=r"cannot read .*: No such file"):
        serve(token_file=tmp_path / "none")


def make_certificate(folder: Path, name: str, authority: Path | None = None) -> Path:
    """A certificate for 127.0.0.1, of itself or of an authority, with its key next to it."""
    folder.mkdir(exist_ok=True)
    made = folder / f"{name}.pem"
    extensions = ["-addext", "subjectAltName=IP:127.0.0.1"]
    signed = (
        [] if authority is None else ["-CA", authority, "-CAkey", authority.with_suffix(".key")]
    )
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "1", "-subj", f"/CN={name}", *extensions, *map(str, signed),
         "-keyout", str(made.with_suffix(".key")), "-out", str(made)],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


def test_a_certificate_without_its_key_is_rejected() -> None:
    with pytest.raises(ValueError, match="only one of certificate_file and key_file"):
        TlsFiles(certificate_file=Path("a.pem"))


def test_metrics_are_read_over_http(serve: Serve) -> None:
    pytest.importorskip("prometheus_client")
    server = serve(metrics_port=0)
    with LookupClient(server.address, LONG) as client:
        client.pull({"item": [7, -1]})
    assert server.exporter is not None
    url = f"http://127.0.0.1:{server.exporter.port}/metrics"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=20) as page:
        lines = page.read().decode().splitlines()
    for expected in (
        'sparring_serving_pulls_total{code="OK",table="item"} 1.0',
        "sparring_serving_ids_total 2.0",
        "sparring_serving_found_total 1.0",
        "sparring_serving_pull_seconds_count 1.0",
        "sparring_serving_version_step 1.0",
        "sparring_serving_bytes_in_flight 0.0",
    ):
        assert expected in lines


def test_a_taken_metrics_port_is_named_and_no_thread_remains(serve: Serve) -> None:
    pytest.importorskip("prometheus_client")
    server = serve(metrics_port=0)
    assert server.exporter is not None
    before = threading.active_count()
    with pytest.raises(StorageIOError, match=r"choose another server\.metrics_port"):
        serve(metrics_port=server.exporter.port)
    assert threading.active_count() <= before
