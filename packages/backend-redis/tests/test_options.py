"""Options that locate Redis, and that no password is ever printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import sparring
from sparring.contracts import TableConfig
from sparring.errors import ConfigError, InvalidArgumentError
from sparring_cli.application import main
from sparring_redis.backend import RedisStorage
from sparring_redis.connections.location import parse_location
from sparring_redis.options import RedisOptions
from sparring_redis.testing.server import RedisServer
from sparring_train.config.reading.loader import load_config

TABLE = TableConfig("table", 4)
SECRET = "hunter2-hunter2"


def test_plugin_is_found_by_its_name(redis_server: RedisServer, new_prefix: Any) -> None:
    with sparring.open_storage(
        "redis", TABLE, url=redis_server.url, prefix=new_prefix()
    ) as storage:
        assert isinstance(storage, RedisStorage)


def test_importing_the_plugin_loads_no_client_library() -> None:
    program = "import sys, sparring_redis.plugin; print({'redis', 'hiredis'} & set(sys.modules))"
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "set()"


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({}, "Redis at 127.0.0.1:6379"),
        ({"host": "cache"}, "Redis at cache:6379"),
        ({"port": 7000}, "Redis at 127.0.0.1:7000"),
        ({"host": "::1", "port": 7000}, "Redis at [::1]:7000"),
        ({"unix_socket": "/run/redis.sock"}, "Redis at unix:///run/redis.sock"),
        ({"url": "unix:///run/redis.sock"}, "Redis at unix:///run/redis.sock"),
        ({"unix_socket": "/run/redis.sock", "database": 3}, "Redis at unix:///run/redis.sock"),
        ({"url": "redis://cache:7000/3"}, "Redis at cache:7000"),
        ({"url": "redis://a,b:7000", "mode": "cluster"}, "Redis cluster at a:6379,b:7000"),
        ({"url": "rediss+cluster://a:1,[::1]:2"}, "Redis cluster at a:1,[::1]:2"),
        (
            {"url": "redis+sentinel://a,b:7/films/2"},
            "Redis 'films' of the sentinels at a:26379,b:7",
        ),
        (
            {"host": "a", "mode": "sentinel", "port": 7, "service": "films"},
            "Redis 'films' of the sentinels at a:7",
        ),
    ],
)
def test_redis_is_found_by_options(options: dict[str, Any], place: str) -> None:
    found = RedisOptions(**options).place()
    assert str(found) == place
    assert RedisOptions(url=found.url).place() == found


def test_url_contains_database_and_encryption() -> None:
    place = RedisOptions(url="rediss://cache/3").place()
    assert (place.database, place.is_encrypted) == (3, True)
    assert RedisOptions(url="unix:///s?database=3").place().database == 3
    assert RedisOptions(host="cache", database=5, tls=True).place().database == 5
    assert parse_location("redis://cache", None, tls=True).is_encrypted


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colour": "red"}, "colour"),
        ({"port": 0}, "port"),
        ({"deadline_seconds": 0}, "deadline_seconds"),
        ({"deadline_seconds": float("inf")}, "deadline_seconds"),
        ({"num_buckets": 100}, "power of two"),
        ({"num_buckets": 8192}, "num_buckets"),
        ({"prefix": "a b"}, "prefix"),
        ({"prefix": "{a}"}, "prefix"),
        ({"url": "http://cache"}, "redis://host:port"),
        ({"url": "redis://a:99999999"}, "must be host:port"),
        ({"url": "redis://a/x"}, "database must be an integer"),
        ({"url": "redis://a,b"}, "one host"),
        ({"url": "redis://a", "host": "b"}, "url and host or port"),
        ({"url": "redis+cluster://a/3"}, "only database 0"),
        ({"host": "a", "mode": "cluster", "database": 1}, "only database 0"),
        ({"host": "a", "mode": "sentinel"}, "option service"),
        ({"url": "redis+cluster://a", "mode": "sentinel"}, "set only one"),
        ({"unix_socket": "/s", "mode": "cluster"}, "standalone"),
        ({"password_file": "f", "password_environment": "V"}, "not both"),
    ],
)
def test_wrong_options_are_rejected(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        sparring.open_storage("redis", TABLE, **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": f"redis://:{SECRET}@cache"}, "password_environment"),
        ({"url": f"redis://me:{SECRET}@cache:1/2"}, "password_environment"),
        ({"url": f"redis://me:{SECRET}@cache".encode()}, "password_environment"),
        ({"url": [f"redis://me:{SECRET}@cache"]}, "url"),
        ({"host": f"me:{SECRET}@cache"}, "password_environment"),
        ({"host": f"{SECRET}@cache"}, "password_environment"),
        ({"password": SECRET}, "did you mean 'password_file'"),
        ({"password_environment": f"{SECRET}!"}, "name of an environment variable"),
        ({"password_environment": "hunter2_hunter2"}, "names a variable, which is not set"),
        ({"sentinel_password_environment": f"{SECRET}!"}, "name of an environment variable"),
        ({"password_environment": [SECRET]}, "password_environment"),
    ],
)
def test_a_password_in_options_is_rejected_and_not_repeated(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=said) as refused:
        sparring.open_storage("redis", TABLE, **options)
    printed = str(refused.value) + repr(refused.value) + repr(refused.value.details)
    assert "hunter2" not in printed
    with pytest.raises((ValidationError, InvalidArgumentError)) as refused:
        RedisOptions(**options).password()
    assert "hunter2" not in str(refused.value)


def test_an_error_about_a_location_repeats_no_password() -> None:
    for url in (f"redis://me:{SECRET}@cache", f"redis://cache/{SECRET}@cache"):
        with pytest.raises(InvalidArgumentError) as refused:
            parse_location(url, None)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize("way", ["file", "override"])
@pytest.mark.parametrize("section", ["storage", "rendezvous"])
def test_a_password_in_a_configuration_is_rejected_and_not_repeated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], way: str, section: str
) -> None:
    url = f"redis://me:{SECRET}@cache"
    text = "data: {kind: table, path: day.csv, categorical: [user]}\nmodel: {kind: dlrm}\n"
    arguments = [f"{section}.backend=redis", f"{section}.options.url={url}"]
    if way == "file":
        text += f"{section}: {{backend: redis, options: {{url: '{url}'}}}}\n"
        arguments = []
    config = tmp_path / "run.yaml"
    config.write_text(text)
    assert main(["config", "show", str(config), *arguments]) != 0
    printed = capsys.readouterr()
    assert "password_environment" in printed.err
    assert SECRET not in printed.err + printed.out
    with pytest.raises(ConfigError) as refused:
        load_config(config, arguments)
    assert SECRET not in str(refused.value) + repr(refused.value.details)


def test_passwords_come_from_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FILMS_PASSWORD", SECRET)
    (tmp_path / "password").write_text(f"{SECRET}\n")
    by_variable = RedisOptions(password_environment="FILMS_PASSWORD")
    by_file = RedisOptions(password_file=tmp_path / "password")
    for options in (by_variable, by_file):
        assert options.password() == SECRET
        assert SECRET not in repr(options) + str(options) + options.model_dump_json()
    monkeypatch.delenv("FILMS_PASSWORD")
    with pytest.raises(InvalidArgumentError, match="'FILMS_PASSWORD', which is not set"):
        by_variable.password()
    monkeypatch.setenv("FILMS_PASSWORD", "")
    with pytest.raises(InvalidArgumentError, match="'FILMS_PASSWORD', which is empty"):
        by_variable.password()
    (tmp_path / "password").write_text("\n")
    with pytest.raises(InvalidArgumentError, match="is empty"):
        by_file.password()
    (tmp_path / "password").unlink()
    with pytest.raises(InvalidArgumentError, match="cannot read password_file"):
        by_file.password()
    with pytest.raises(InvalidArgumentError, match="cannot read password_file"):
        RedisOptions(password_file="pass\0word").password()


def test_numpy_integers_are_accepted() -> None:
    assert RedisOptions(num_buckets=np.int64(16), port=np.int32(7000)).num_buckets == 16
