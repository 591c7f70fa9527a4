"""Overrides of a configuration that a package reads as a document."""

from __future__ import annotations

import pytest

from sparring import Document, DocumentModel
from sparring.errors import ConfigError


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


def test_an_override_makes_sections_that_are_missing() -> None:
    assert read("server.threads=3", text="").server.threads == 3


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("server.threads", "must be dotted.key=value"),
        ("=3", "must be dotted.key=value"),
        ("server.threads.more=3", "threads is no section"),
        ("server.threads=[", "override server.threads:1:"),
        (
            "server.thread=3",
            "override server.thread: unknown key server.thread .did you mean threads",
        ),
        ("server.threads=few", "override server.threads: server.threads: "),
        ("server={threads: few}", "override server: server.threads: "),
    ],
)
def test_what_is_wrong_with_an_override_is_said_with_its_key(override: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(override)


def test_what_is_wrong_with_the_file_is_said_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"a\.yaml:2:3: server\.threads: "):
        read(text="server:\n  threads: few\n")
