"""Finds passwords that were written out where only their names may stand.

Configurations are printed, compared between ranks and kept beside results. So they say where a
secret is to be found, by an environment variable or a file, and never hold it. What looks like one
is refused, and repeated in no message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = [
    "SECRET_GIVEN",
    "SecretFound",
    "has_password",
    "is_secret_name",
    "may_show_secret",
    "passwords_in",
    "secrets_in",
]

SECRET_GIVEN = "secret_given"
"""The type of the pydantic error by which an options model refuses a secret that was written out
where options stand. What was found is then never repeated: messages end up in logs."""

_WORDS = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|"
    r"(?:secret|access|account|api|private)[_-]?key)"
)
# Configurations may come from anywhere: what is longer than they may hold is refused by its length,
# and no pattern takes long over the rest.
_MOST_CHARACTERS = 4096
# `https://host:8080/a@b` has a port before its slash, and no password.
_BEFORE_THE_HOST_OF_A_URL = re.compile(r"://[^/?#\s:@]*:(?!\d{1,5}(?:/|\Z))[^\s@]*@")
_IN_A_QUERY = re.compile(rf"[?&;][^?=&;\s]*{_WORDS}=[^&\s]", re.IGNORECASE)
_BEFORE_A_HOST = re.compile(r"[^/\s:@]*:[^/\s@]+@[^/\s@]+\Z")
_SECRET_NAME = re.compile(rf"{_WORDS}\Z", re.IGNORECASE)
_HINT = re.compile(rf"{_WORDS}|[^\s='\"@]@", re.IGNORECASE)
_VARIABLE_OF_A_SECRET = re.compile(rf"{_WORDS}_environment\Z", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class SecretFound:
    """Where a secret stands, and what to do about it; not what it is."""

    path: tuple[str | int, ...]
    reason: str


def has_password(text: str) -> bool:
    """Whether a text holds a URL with a password in it."""
    text = text[:_MOST_CHARACTERS]
    begin = text.find("://")
    if begin < 0:
        return False
    return bool(_BEFORE_THE_HOST_OF_A_URL.search(text, begin) or _IN_A_QUERY.search(text, begin))


def is_secret_name(name: str) -> bool:
    """Whether what has this name is a secret itself, as ``password`` or ``secret_access_key``."""
    return bool(_SECRET_NAME.search(name))


def may_show_secret(text: str) -> bool:
    """Whether a text that was found somewhere is better not repeated in a message."""
    return bool(_HINT.search(text))


def passwords_in(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[SecretFound]:
    """All URLs with a password in them, in mappings and lists of any depth."""
    for below, each in _scalars(value, path):
        if has_password(_text_of(each)):
            yield SecretFound(below, _HOLDS_A_PASSWORD)


def secrets_in(options: Any) -> Iterator[SecretFound]:
    """All secrets in the options of a backend: by their form, ``user:password@host`` without a scheme
    too, or by the name that they have."""
    for path, value in _scalars(options, ()):
        text = _text_of(value)
        if has_password(text) or _BEFORE_A_HOST.match(text[:_MOST_CHARACTERS]):
            yield SecretFound(path, _HOLDS_A_PASSWORD)
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if value is None or isinstance(value, bool):
            continue
        if is_secret_name(name):
            yield SecretFound(
                path,
                "is a secret by its name, and configurations are printed; name the environment "
                f"variable or the file that holds it, as {name}_environment, if the backend has "
                "an option for that",
            )
        elif _VARIABLE_OF_A_SECRET.search(name) and not _is_variable(value):
            yield SecretFound(
                path,
                "must be the name of an environment variable: letters, digits and _, no digit "
                "first; it is not the place for the secret itself",
            )


_HOLDS_A_PASSWORD = (
    "holds a password, and configurations are printed; leave user and password out of it, and give "
    "them by the options that the backend has for them, as password_environment, or by the "
    "variables and files of the file system"
)


def _text_of(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


def _is_variable(value: object) -> bool:
    return isinstance(value, str) and bool(_VARIABLE.match(value))


def _scalars(
    value: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _scalars(each, (*path, name if isinstance(name, int) else str(name)))
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from _scalars(each, (*path, i))
    else:
        yield path, value
