"""Tests that permanent errors are raised immediately and name the file or the server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, SparringError, StorageIOError
from sparring_redis.connections.connection import Access
from sparring_redis.testing.certificates import Certificates, make_certificates
from sparring_redis.testing.sentinel import RedisSentinel
from sparring_redis.testing.server import RedisServer, redis_server_missing

TABLE = TableConfig("films", 4)
DEADLINE = 60.0

pytestmark = pytest.mark.skipif(
    redis_server_missing() is not None, reason=redis_server_missing() or ""
)


def check(**options: Any) -> None:
    """Fails unless a row is read as it was written."""
    with open_storage("redis", TABLE, deadline_seconds=DEADLINE, **options) as storage:
        storage.upsert([7], np.ones((1, 4), np.float32))
        assert storage.find([7]).found.all()


@contextmanager
def refused_at_once(error: type[SparringError], expected: str) -> Iterator[None]:
    start = time.monotonic()
    with pytest.raises(error, match=expected):
        yield
    assert time.monotonic() - start < DEADLINE / 2, "it was tried again and again"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def mutual(made: Certificates) -> Iterator[RedisServer]:
    """A server that requires certificates of its clients."""
    settings = {**made.server_settings, "tls-auth-clients": "yes"}
    with RedisServer(settings, access=Access(context=made.context)) as server:
        yield server


def test_a_server_that_requires_a_certificate_gets_ours(
    mutual: RedisServer, made: Certificates, tmp_path: Path
) -> None:
    options = {"url": mutual.url, "tls_ca_file": made.authority}
    check(**options, tls_certificate_file=made.certificate, tls_key_file=made.key)
    both = tmp_path / "both.pem"
    both.write_text(made.certificate.read_text() + made.key.read_text())
    check(**options, tls_certificate_file=both)
    with refused_at_once(StorageIOError, rf"127.0.0.1:{mutual.port} replied.*tls_certificate_file"):
        check(**options)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"tls_ca_file": "nowhere.pem"}, r"cannot read tls_ca_file nowhere\.pem \(No such"),
        ({"tls_ca_file": "no.pem"}, r"tls_ca_file .*no\.pem does not contain a PEM certificate"),
        ({"tls_ca_file": "a\0b"}, r"cannot read tls_ca_file "),
        (
            {"tls_certificate_file": "nowhere.pem", "tls_key_file": "key"},
            r"cannot read tls_certificate_file nowhere\.pem",
        ),
        (
            {"tls_certificate_file": "certificate", "tls_key_file": "nowhere.pem"},
            r"cannot read tls_key_file nowhere\.pem",
        ),
        ({"tls_certificate_file": "certificate"}, r"set tls_key_file to the file of the key"),
        (
            {"tls_certificate_file": "certificate", "tls_key_file": "authority_key"},
            r"set files that belong together",
        ),
        ({"tls_key_file": "key"}, r"tls_key_file is set without tls_certificate_file"),
    ],
    ids=lambda each: "" if isinstance(each, str) else " ".join(each),
)
def test_a_file_of_the_wrong_kind_is_named(
    made: Certificates, tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    """The error is raised before a connection: no server listens there."""
    no_pem = tmp_path / "no.pem"
    no_pem.write_text("seed: 1\n")
    known = {
        "certificate": made.certificate,
        "key": made.key,
        "authority_key": made.authority.with_name("ca.key"),
        "no.pem": no_pem,
    }
    options = {"tls_ca_file": made.authority, **{k: known.get(v, v) for k, v in files.items()}}
    with refused_at_once(InvalidArgumentError, expected):
        check(url="rediss://127.0.0.1:1", **options)


def test_a_plain_text_answer_to_tls_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            client, _ = listening.accept()
            with client:
                client.sendall(b"-ERR what is that?\r\n")
                client.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        with refused_at_once(StorageIOError, "remove tls and rediss"):
            check(port=listening.getsockname()[1], tls=True)
        thread.join()


def test_an_untrusted_certificate_is_reported_at_once(
    mutual: RedisServer, made: Certificates, tmp_path: Path
) -> None:
    with refused_at_once(StorageIOError, "certificate is not trusted.*tls_ca_file"):
        check(
            url=mutual.url,
            tls_ca_file=make_certificates(tmp_path).authority,
            tls_certificate_file=made.certificate,
            tls_key_file=made.key,
        )


def test_features_that_the_server_does_not_support_are_reported_at_once(
    own_redis_server: RedisServer,
) -> None:
    where = f"127.0.0.1:{own_redis_server.port}"
    with refused_at_once(StorageIOError, rf"Redis at {where} replied.*DB index"):
        check(url=f"{own_redis_server.url}/99")
    with refused_at_once(StorageIOError, rf"{where} replied.*cluster support.*node of a cluster"):
        check(url=f"redis+cluster://{where}")
    with refused_at_once(
        StorageIOError, rf"sentinel at {where} replied.*whether a sentinel answers"
    ):
        check(url=f"redis+sentinel://{where}/films")


def test_the_server_that_rejected_a_password_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIGHT", "hunter2")
    monkeypatch.setenv("WRONG", "rabbit3")
    with RedisSentinel() as watched:
        sentinel, master = watched.sentinel, watched.master
        for each in (master, watched.replica):
            each.ask("CONFIG", "SET", "requirepass", "hunter2", seconds=5.0)
        rules = ["on", ">hunter2", "~*", "&*", "+@all"]
        sentinel.ask("ACL", "SETUSER", "watcher", *rules)
        sentinel.ask("ACL", "SETUSER", "default", "resetpass", ">hunter2")
        options = {"url": watched.url, "password_environment": "RIGHT"}
        check(**options, sentinel_password_environment="RIGHT")
        check(**options, sentinel_username="watcher", sentinel_password_environment="RIGHT")
        with refused_at_once(StorageIOError, rf"sentinel at 127\.0\.0\.1:{sentinel.port} replied"):
            check(**options, sentinel_password_environment="WRONG")
        with refused_at_once(StorageIOError, rf"sentinel at 127\.0\.0\.1:{sentinel.port} replied"):
            check(**options)
        options["password_environment"] = "WRONG"
        with refused_at_once(StorageIOError, rf"Redis at 127\.0\.0\.1:{master.port} replied"):
            check(**options, sentinel_password_environment="RIGHT")


def test_one_sentinel_that_rejects_does_not_hide_another_that_answers() -> None:
    with RedisSentinel() as watched, RedisServer() as plain:
        hosts = f"127.0.0.1:{plain.port},127.0.0.1:{watched.sentinel.port}"
        check(url=f"redis+sentinel://{hosts}/{watched.service}")


def test_one_sentinel_that_rejects_is_named_if_the_other_is_silent(
    own_redis_server: RedisServer,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{own_redis_server.port}"
        with pytest.raises(StorageIOError, match=r"Timeout.*sentinel at .*SENTINEL"):
            open_storage("redis", TABLE, url=f"redis+sentinel://{hosts}/films", deadline_seconds=1)
