"""A token and TLS on the port of metrics, on both servers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from sparring.errors import ConfigError
from sparring_cli import ExitCode, main
from sparring_serve import TlsFiles
from sparring_serve.config import ServerConfig
from sparring_serve.server.certificate import read_expiry
from sparring_serve.server.lookup_server import check_access
from sparring_serve.testing.front_ends import Folder, read_metrics, scrape
from sparring_testing.processes.certificates import make_certificate
from sparring_testing.processes.waiting import wait_until

from .conftest import KINDS, Serve

TOKEN = "t" * 20


def test_a_request_without_the_token_is_rejected(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f" \t{TOKEN} \r\n")
    server = serve(metrics_token_file=file)
    status, page = scrape(server, f"Bearer {TOKEN}")
    assert status == 200
    assert "sparring_serving_pulls_total" in page
    for wrong in ("", TOKEN, f"Bearer {TOKEN}x", "Bearer ", f"Basic {TOKEN}"):
        status, page = scrape(server, wrong)
        assert status == 401
        assert page == "send the token of this server: Authorization: Bearer ...\n"
    file.write_text("another token\n")
    assert scrape(server, f"Bearer {TOKEN}")[0] == 401
    assert scrape(server, "Bearer another token")[0] == 200


def test_the_previous_token_remains_while_the_file_is_invalid(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN)
    server = serve(metrics_token_file=file)

    def warnings() -> list[str]:
        return [each for each in [*server.lines, *caplog.messages] if "remains in use" in each]

    for number, make_invalid in enumerate((file.unlink, lambda: file.write_text("\n")), 1):
        make_invalid()
        for _ in range(3):
            assert scrape(server, f"Bearer {TOKEN}")[0] == 200
            assert scrape(server, "Bearer ")[0] == 401
        wait_until(lambda expected=number: len(warnings()) >= expected)
        assert len(warnings()) == number
        file.write_text(TOKEN)
        assert scrape(server, f"Bearer {TOKEN}")[0] == 200


def test_an_empty_token_is_rejected_at_the_start(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("\n")
    with pytest.raises((ConfigError, AssertionError), match="first line must be the token"):
        serve(metrics_token_file=tmp_path / "token")


@pytest.mark.parametrize(("address", "is_warned"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
def test_a_token_in_plain_text_is_reported(
    address: str, is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    server = ServerConfig(insecure=True, metrics_port=0, metrics_token_file=tmp_path / "token")
    check_access(server, address)
    assert ("set server.metrics_tls" in caplog.text) == is_warned


@pytest.mark.parametrize("front_end", KINDS)
def test_an_invalid_certificate_is_rejected_before_a_server_starts(
    folder: Folder, front_end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("certificate", "key"):
        (tmp_path / name).write_text("not PEM")
    config = tmp_path / "serving.yaml"
    config.write_text(
        f"snapshots: {folder.served}\nshards: [['127.0.0.1:0']]\n"
        f"server: {{front_end: {front_end}, metrics_port: 0, metrics_tls: true,\n"
        f"  tls: {{certificate_file: {tmp_path}/certificate, key_file: {tmp_path}/key}}}}\n"
    )
    assert main(["serve", str(config)]) == ExitCode.INVALID
    assert "server.metrics_port: the file of its token or certificate" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_the_port_uses_tls_and_reads_the_certificate_again(serve: Serve, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path, "server")
    tls = TlsFiles(certificate_file=certificate, key_file=certificate.with_suffix(".key"))
    (tmp_path / "token").write_text(TOKEN)
    server = serve(tls=tls, metrics_tls=True, metrics_token_file=tmp_path / "token")
    trusted = Path(shutil.copy(certificate, tmp_path / "trusted.pem"))
    assert scrape(server, ca=trusted)[0] == 401
    status, page = scrape(server, f"Bearer {TOKEN}", trusted)
    assert status == 200
    assert "sparring_serving_pulls_total" in page
    host, port = server.metrics_address.rsplit(":", 1)
    # Neither plain text nor a silent client stops the port.
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        suppress(ConnectionResetError),
    ):
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    with socket.create_connection((host, int(port)), timeout=60):
        assert scrape(server, f"Bearer {TOKEN}", trusted)[0] == 200
    other = make_certificate(tmp_path / "new", "server")
    shutil.copy(other.with_suffix(".key"), certificate.with_suffix(".key"))
    shutil.copy(other, certificate)
    assert scrape(server, f"Bearer {TOKEN}", other)[0] == 200
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        scrape(server, f"Bearer {TOKEN}", trusted)
    certificate.write_text("not PEM")
    assert scrape(server, f"Bearer {TOKEN}", other)[0] == 200


def test_the_end_of_the_certificate_is_a_metric_and_a_warning(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate = make_certificate(tmp_path, "server", days=400)
    tls = TlsFiles(certificate_file=certificate, key_file=certificate.with_suffix(".key"))
    server = serve(tls=tls)

    def warnings() -> list[str]:
        return [
            each for each in [*server.lines, *caplog.messages] if "tls.certificate_file" in each
        ]

    def days_left() -> float:
        expiry = read_metrics(server)["certificate_expires_seconds"]
        return (expiry - time.time()) / 86400

    assert days_left() == pytest.approx(400, abs=0.01)
    assert not warnings()
    for days, words in ((13, " expires at "), (-1, " expired at ")):
        subprocess.run(
            ["openssl", "x509", "-in", certificate, "-signkey", tls.key_file, "-days", str(days), "-out",
             tmp_path / "new.pem"],
            check=True, capture_output=True,
        )  # fmt: skip
        shutil.copy(tmp_path / "new.pem", certificate)
        assert days_left() == pytest.approx(days, abs=0.01)
        wait_until(lambda expected=words: any(expected in each for each in warnings()))


@pytest.mark.parametrize("content", [b"", b"text", b"!!!!", b"MAAw", b"MIIC"])
def test_a_file_without_a_certificate_is_rejected(content: bytes) -> None:
    lines = b"-----BEGIN CERTIFICATE-----\n" + content + b"\n-----END CERTIFICATE-----\n"
    with pytest.raises(ConfigError, match="found no certificate, expected one in PEM format"):
        read_expiry(lines)
