"""Tests of the server of the page with requests that a browser, another web page or an attacker sends."""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from sparring.errors import StorageIOError
from sparring_train.view.answers import LookView
from sparring_train.view.server import LookServer


def send(
    server: LookServer, target: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, bytes, http.client.HTTPMessage]:
    """Sends a request as it is, without changes of the path, and returns the reply."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.putrequest(method, target, skip_host=True)
        for name, value in (headers or {"Host": f"127.0.0.1:{server.port}"}).items():
            connection.putheader(name, value)
        connection.endheaders()
        reply = connection.getresponse()
        return reply.status, reply.read(), reply.headers
    finally:
        connection.close()


def ask(server: LookServer, request: str) -> tuple[int, Any]:
    status, content, _ = send(server, f"/{server.token}/api/{request}")
    return status, json.loads(content.splitlines()[-1])


def test_page_and_its_files_are_served_with_a_strict_policy(server: LookServer) -> None:
    for name, kind in (("", "text/html"), ("look.css", "text/css"), ("look.js", "text/javascript")):
        status, content, headers = send(server, f"/{server.token}/{name}")
        assert (status, headers.get_content_type()) == (200, kind)
        assert int(headers["Content-Length"]) == len(content) > 1_000
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert "http://" not in content.decode().replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "", "[::1]:{port}"]
)
def test_other_names_of_the_host_are_rejected(server: LookServer, host: str) -> None:
    headers = {"Host": host.format(port=server.port)}
    for target in ("", "api/overview"):
        status, content, _ = send(server, f"/{server.token}/{target}", headers=headers)
        assert status == 403
        assert b"step" not in content


def test_request_without_host_is_rejected(server: LookServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(f"GET /{server.token}/api/overview HTTP/1.0\r\n\r\n".encode())
        assert b" 403 " in connection.makefile("rb").readline()


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/api/overview",
        "/{start}/",
        "/{token}x/",
        "/%00/",
        "/%c3%a9/",
        "*",
        "http://[/",
    ],
)
def test_addresses_without_the_token_are_rejected(server: LookServer, target: str) -> None:
    named = target.format(token=server.token, start=server.token[:-1])
    status, content, _ = send(server, named)
    assert status in {400, 403}
    assert b"step" not in content


@pytest.mark.parametrize(
    "name",
    [
        "../../../../etc/passwd",
        "..%2f..%2fetc/passwd",
        "look.css/../body.html",
        "body.html",
        "./look.css",
        "look.js%00",
        "api",
        "api/",
        "api/unknown",
        "api/../look.css",
        "api/close",
        "api/__class__",
    ],
)
def test_unknown_paths_are_not_found(server: LookServer, name: str) -> None:
    assert send(server, f"/{server.token}/{name}")[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
def test_only_get_is_accepted(server: LookServer, method: str) -> None:
    assert send(server, f"/{server.token}/api/overview", method)[0] == 501


@pytest.mark.parametrize(
    ("request_text", "status", "message"),
    [
        ("sample?table=none", 404, "has no table 'none'"),
        ("sample?table=" + quote("../user"), 404, "has no table"),
        ("measure?table=none", 404, "has no table"),
        ("ages?table=none", 404, "has no table"),
        ("names?table=none", 404, "has no table"),
        ("neighbors?table=none&id=7", 404, "has no table"),
        ("history?table=none&id=7", 404, "has no table"),
        ("difference?table=none&with=base", 404, "has no table"),
        ("row?table=none&id=7", 404, "has no table"),
        ("sample", 400, "lacks the parameter 'table'"),
        ("row?table=user", 400, "lacks the parameter 'id'"),
        ("row?table=user&id=", 400, "lacks the parameter 'id'"),
        ("row?table=user&id=" + "7" * 5_000, 400, "5,000 characters"),
        ("row?table=user&id=1&id=2", 400, "twice"),
        ("row?table=user&id=1&more=2", 400, "unknown parameter 'more'"),
        ("overview?" + "&".join(f"p{each}=1" for each in range(20)), 400, "more than 8 parameters"),
        ("sample?table=user&method=evil", 400, "expected pca or umap"),
        ("neighbors?table=user&id=100&k=0", 400, "expected 1 to 1,000"),
        ("neighbors?table=user&id=100&k=1000000000", 400, "expected 1 to 1,000"),
        ("neighbors?table=user&id=100&k=" + "9" * 999, 400, "expected a whole number"),
        ("neighbors?table=user&id=100&k=x", 400, "expected a whole number"),
        ("neighbors?table=user&id=100&metric=evil", 400, "metric must be one of"),
        ("difference?table=user", 400, "no version to compare with"),
        ("difference?table=user&with=base&top=-1", 400, "expected 0 to 1,000"),
        ("difference?table=user&with=" + quote("../../etc"), 404, "found no such snapshot"),
    ],
)
def test_invalid_requests_get_an_error_with_the_fix(
    server: LookServer, request_text: str, status: int, message: str
) -> None:
    found, content = ask(server, request_text)
    assert found == status
    assert message in content["error"]


@pytest.mark.parametrize(
    "text", ["not-an-id", "9" * 100, "-9223372036854775808", "\x00\u2028<b>", " "]
)
def test_any_text_may_be_an_id(server: LookServer, text: str) -> None:
    status, content = ask(server, f"row?table=user&id={quote(text)}")
    assert status == 200
    assert not content["result"]["found"]


def test_long_computations_report_their_progress(
    server: LookServer, view: LookView, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compute(_: Any, on_progress: Any) -> str:
        for share in (0.25, 0.5):
            time.sleep(0.3)
            on_progress(share)
        return "done"

    monkeypatch.setitem(view._answers, "measure", compute)
    _, content, _ = send(server, f"/{server.token}/api/measure?table=user")
    lines = [json.loads(line) for line in content.splitlines()]
    assert lines == [{"progress": 0.25}, {"progress": 0.5}, {"result": "done"}]


def test_damage_is_reported_and_does_not_stop_the_server(
    server: LookServer, run_folder: Path
) -> None:
    for path in run_folder.glob("base/rows.user.*"):
        content = path.read_bytes()
        try:
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            status, found = ask(server, "measure?table=user")
        finally:
            path.write_bytes(content)
        assert status == 400
        assert path.name in found["error"]
    assert ask(server, "overview")[0] == 200


def test_port_in_use_is_an_error(server: LookServer, view: LookView) -> None:
    with pytest.raises(StorageIOError, match=f"cannot listen on 127.0.0.1:{server.port}"):
        LookServer(view, server.port)
