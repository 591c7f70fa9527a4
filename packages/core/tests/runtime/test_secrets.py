"""Passwords are found in texts and options, without false positives."""

from __future__ import annotations

import time

import pytest

from sparring.runtime.secrets import find_secrets, has_password, is_secret_name

SECRET = "hunter2hunter2"


@pytest.mark.parametrize(
    "text",
    [
        f"redis://:{SECRET}@cache",
        f"redis://me:{SECRET}@cache:6379/0",
        f"s3://key:{SECRET}/with/slashes@bucket/run",
        f"see https://me:{SECRET}@host/path",
        f"unix:///s.sock?password={SECRET}",
        f"s3://bucket/run?region=eu&secret_key={SECRET}",
    ],
)
def test_a_password_is_found_in_a_text(text: str) -> None:
    assert has_password(text)


@pytest.mark.parametrize("text", [f"me:{SECRET}@cache", f":{SECRET}@cache:6379"])
def test_a_password_before_a_host_is_found_in_options_of_backends(text: str) -> None:
    assert [found.path for found in find_secrets({"hosts": [text]})] == [("hosts", 0)]
    assert not has_password(text), "elsewhere it may be a name, as of an image by its digest"


@pytest.mark.parametrize("piece", ["a://?", "://a:", "?", "&secret", "a", ":", "://", "a:a"])
def test_no_text_takes_long_to_search(piece: str) -> None:
    text = "a://" + piece * (1_000_000 // len(piece))
    begin = time.process_time()
    has_password(text)
    list(find_secrets({"text": text, "scheme": text[4:]}))
    assert time.process_time() - begin < 2  # a pattern with cubic time would take minutes


@pytest.mark.parametrize(
    "text",
    [
        "redis://cache:6379/0",
        "hdfs://me@namenode/path",
        "https://host:8080/day@1.csv",
        "s3://bucket/run?region=eu",
        "runs/a@b",
        "me@cache",
        "C:/day@1.csv",
        "12:30",
    ],
)
def test_there_are_no_false_positives(text: str) -> None:
    assert not has_password(text)


def test_names_of_secrets_differ_from_names_of_their_locations() -> None:
    for name in ("password", "sentinel_password", "token", "api_key", "secretAccessKey", "pwd"):
        assert is_secret_name(name), name
    for name in ("password_environment", "password_file", "tls_key_file", "key", "tokens", "path"):
        assert not is_secret_name(name), name
