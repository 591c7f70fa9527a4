"""Detection of secrets in configurations.

Configurations are printed, compared between ranks and stored with results. Therefore they must not
contain secrets, but name the environment variable or file with the secret. No message repeats a
value that looks like a secret. Options of backends are searched as plain mappings, because not
every reader of a configuration knows their model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

__all__ = [
    "SECRET_IN_CONFIG",
    "FoundSecret",
    "has_password",
    "is_secret_name",
    "may_show_secret",
    "find_passwords",
    "find_secrets",
]

SECRET_IN_CONFIG = "secret_given"
"""Type of the pydantic error for a secret in a configuration. Its messages do not repeat the input."""

_WORDS = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token|credentials?|"
    r"(?:secret|access|account|api|private)[_-]?key)"
)
# Longer texts are rejected elsewhere. The limit bounds the time of the patterns for hostile texts.
_MAX_CHARACTERS = 4096
# `user:password@` before the host, but no port as in `https://host:8080/a@b`; or in the query.
_PASSWORD_IN_URL = re.compile(
    rf"://[^/?#\s:@]*:(?!\d{{1,5}}(?:/|\Z))[^\s@]*@|[?&;][^?=&;\s]*{_WORDS}=[^&\s]", re.IGNORECASE
)
_PASSWORD_BEFORE_HOST = re.compile(r"[^/\s:@]*:[^/\s@]+@[^/\s@]+\Z")
_NAME = re.compile(rf"{_WORDS}\Z", re.IGNORECASE)
_HINT = re.compile(rf"{_WORDS}|(?:tls|ssl)[_-]?key|[^\s='\"@]@", re.IGNORECASE)
_VARIABLE_OPTION = re.compile(rf"{_WORDS}_environment\Z", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class FoundSecret(NamedTuple):
    """Path of a secret in a configuration, and the reason and fix. It does not contain the secret."""

    path: tuple[str | int, ...]
    reason: str


def has_password(text: str) -> bool:
    """Whether a text contains a URL with a password."""
    text = text[:_MAX_CHARACTERS]
    begin = text.find("://")
    return begin >= 0 and bool(_PASSWORD_IN_URL.search(text, begin))


def is_secret_name(name: str) -> bool:
    """Whether a name, such as ``password`` or ``secret_access_key``, denotes a secret."""
    return bool(_NAME.search(name))


def may_show_secret(text: str) -> bool:
    """Whether a text may contain a secret, so that messages must not repeat it.

    Args:
        text: any text, such as the value of an option.
    """
    return bool(_HINT.search(text))


def find_passwords(value: Any) -> Iterator[FoundSecret]:
    """Yields all URLs with a password.

    Args:
        value: nested mappings and lists, such as the options of a backend.
    """
    for path, each in _scalars(value, ()):
        if has_password(_to_text(each)):
            yield FoundSecret(path, _CONTAINS_PASSWORD)


def find_secrets(options: Any) -> Iterator[FoundSecret]:
    """Yields all secrets in options of a backend, detected by form or name.

    In addition to URLs, ``user:password@host`` without a scheme is detected.

    Args:
        options: nested mappings and lists.
    """
    for path, value in _scalars(options, ()):
        text = _to_text(value)
        if has_password(text) or _PASSWORD_BEFORE_HOST.match(text[:_MAX_CHARACTERS]):
            yield FoundSecret(path, _CONTAINS_PASSWORD)
        if value is None or isinstance(value, bool):
            continue
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if is_secret_name(name):
            yield FoundSecret(
                path,
                "is a secret according to its name, and configurations are printed; name the "
                f"environment variable or the file that contains it, for example with "
                f"{name}_environment, if the backend has such an option",
            )
        elif _VARIABLE_OPTION.search(name) and not _VARIABLE.match(text):
            yield FoundSecret(
                path,
                "must be the name of an environment variable (letters, digits and _, not starting "
                "with a digit), not the secret itself",
            )


_CONTAINS_PASSWORD = (
    "contains a password, and configurations are printed; remove user and password from it, and "
    "pass them with options of the backend such as password_environment, or with the environment "
    "variables and files of the file system"
)


def _to_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else ""


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
