"""Documents: their overrides, and the contents of messages about them."""

from __future__ import annotations

import pytest

from sparring.errors import ConfigError
from sparring_cli import Document, DocumentModel


class Server(DocumentModel):
    threads: int = 1
    address: str = "here"


class Config(DocumentModel):
    server: Server = Server()


def read(*overrides: str, text: str = "server:\n  threads: 2\n") -> Config:
    document = Document("a.yaml", text)
    for each in overrides:
        document.override(each)
    return document.as_model(Config)


def test_the_last_override_of_a_key_wins_and_others_stay() -> None:
    assert read("server.threads=3", "server.threads=4").server == Server(threads=4)
    assert read("server.address=there").server == Server(threads=2, address="there")


def test_an_override_creates_missing_sections() -> None:
    assert read("server.threads=3", text="").server.threads == 3


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("server.threads", "an override has the form dotted.key=value"),
        ("=3", "an override has the form dotted.key=value"),
        (
            "server.threads.more=3",
            "server.threads cannot have a key 'more'; override server.threads itself",
        ),
        ("server.threads=[", r"override server\.threads=\[: YAML: .*; quote the value"),
        (
            "server.thread=3",
            "override server.thread=3: unknown key 'thread' in server .did you mean threads",
        ),
        (
            "server.threads=few",
            "override server.threads=few: server.threads is wrong .found 'few', expected a whole",
        ),
        ("server={threads: few}", "override server={threads: few}: server.threads is wrong "),
    ],
)
def test_an_error_of_an_override_names_its_key(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(override)


def test_an_error_of_the_file_names_its_place() -> None:
    with pytest.raises(ConfigError, match=r"a\.yaml:2:12: server\.threads is wrong "):
        read(text="server:\n  threads: few\n")


class Access(DocumentModel):
    password: int | None = None
    tls_key: bool = False
    addresses: int = 0


@pytest.mark.parametrize(
    "text",
    [
        "password: !!int hunter2",
        "password: !!float hunter2",
        "password: !!bool hunter2",
        "password: !!timestamp hunter2",
        "password: !!binary hunter2",
        "password: !hunter2",
        "password: !!hunter2 more",
        "password: !hunter2!more",
        "password: *hunter2",
        "password: {a: [!!int hunter2]}",
        "password: hunter2",
        "password: [hunter2]",
        "password: {a: hunter2}",
        "tls_key: hunter2",
        "addresses: redis://me:hunter2@host",
        "addresses: !!int redis://me:hunter2@host",
        "? [hunter2]\n: 3",
    ],
)
def test_no_message_repeats_a_secret(text: str) -> None:
    with pytest.raises(ConfigError, match=r"a\.yaml:1:") as raised:
        Document("a.yaml", text).as_model(Access)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "override", ["password hunter2", "password:hunter2", "password=!!int hunter2"]
)
def test_no_message_about_an_override_repeats_a_secret(override: str) -> None:
    document = Document("a.yaml", "")
    document.override(override)
    with pytest.raises(ConfigError) as raised:
        document.as_model(Access)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("addresses: !!int few", r"this is not a value of type int \(found 'few'\)"),
        ("addresses: !!bool few", r"this is not a value of type bool \(found 'few'\)"),
        ("addresses: few", r"\(found 'few', expected a whole number\)"),
        ("addresses: !few", r"tags are not allowed; remove it \(found !few\)"),
        ("addresses: [", "but found '<stream end>'"),
        ("? [few]\n: 3", "a key must be text"),
    ],
)
def test_other_wrong_values_are_shown(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Document("a.yaml", text).as_model(Access)


@pytest.mark.parametrize("key", ["é", "a b", "a:b", "\U0001f600"])
def test_an_override_may_have_any_key(key: str) -> None:
    document = Document("a.yaml", "")
    document.override(f"{key}.b=3")
    assert document.value == {key: {"b": 3}}


def test_all_problems_of_text_override_and_value_are_reported_at_once() -> None:
    text = "server:\n  threads: 2\n  threads: 3\n  adress: there\n"
    document = Document("a.yaml", text)
    document.override("server")
    document.override("sever.threads=3")
    with pytest.raises(ConfigError) as raised:
        document.as_model(Config)
    assert str(raised.value).splitlines() == [
        "a.yaml:3:3: YAML: duplicate key 'threads', first at a.yaml:2:3; remove one",
        "a.yaml:4:3: unknown key 'adress' in server (did you mean address?)",
        "override server: an override has the form dotted.key=value",
        "override sever.threads=3: unknown key 'sever' (did you mean server?)",
    ]


def test_the_value_is_not_given_while_the_text_is_wrong() -> None:
    document = Document("a.yaml", "a: 1\na: 2\n")
    with pytest.raises(ConfigError, match="duplicate key 'a'"):
        _ = document.value


def test_keys_that_are_numbers_are_text() -> None:
    assert Document("a.yaml", "8: x\n").value == {"8": "x"}


class Choice(DocumentModel):
    sketch: str


class Plain(DocumentModel):
    skew: float | Choice = 1.0


def test_an_unknown_key_of_a_union_with_a_plain_value_is_explained() -> None:
    with pytest.raises(ConfigError) as raised:
        Document("a.yaml", "skew: {skech: a}\n").as_model(Plain)
    assert "unknown key 'skech' in skew (did you mean sketch?)" in str(raised.value)
