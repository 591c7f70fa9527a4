"""Bearer tokens with roles, and files that are read again when they change."""

from __future__ import annotations

import hmac
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from sparring.errors import ConfigError
from sparring_serve.status import Status, StatusError

__all__ = ["ROLES", "Caller", "WatchedFile", "Tokens", "check_local", "read_token"]

ROLES = ("pull", "push", "admin")
"""Roles of tokens; each role includes the calls of the roles before it.

`pull` allows calls that read: lookups, scans, recommendations and descriptions. `push` adds pushes of
gradients and flushes. `admin` adds refreshes, saves and loads.
"""

_MAX_TOKENS = 1000
_MAX_TOKEN = 4096
_CLIENT = re.compile(r"client=([A-Za-z0-9_.\-]{1,64})\Z")

_LOCAL_PEER = re.compile(
    r"unix:|ipv4:127\.|ipv6:(\[|%5B)(::1|::ffff:127\.[0-9.]+)(\]|%5D):", re.IGNORECASE
)

_log = logging.getLogger(__name__)

_Value = TypeVar("_Value")


def check_local(peer: str, role: str) -> None:
    """Rejects a call that came from another machine.

    A server without tokens checks each call that needs a higher role than `pull`.

    Args:
        peer: Address of the caller, as gRPC reports it.
        role: Role that the call needs.

    Raises:
        StatusError: PERMISSION_DENIED.
    """
    if not _LOCAL_PEER.match(peer):
        raise StatusError(
            Status.PERMISSION_DENIED,
            f"the call needs the role {role} and came from {peer}. A server without server.token_file "
            "accepts pushes, flushes, saves, loads and refreshes from loopback addresses only; set "
            "server.token_file on the server and client.token_file on the caller's side",
            reason="no_tokens",
        )


class WatchedFile(Generic[_Value]):
    """Value parsed from a file; the file is read again when it was replaced or written.

    If the file cannot be read or is invalid, the previous value remains, and a warning is logged once.

    Args:
        path: Path of the file.
        read: Converts the bytes to the value; raises `ConfigError`.

    Raises:
        ConfigError: The first read fails.
    """

    def __init__(self, path: Path, read: Callable[[bytes], _Value]) -> None:
        self.path = path
        self._read = read
        self._lock = threading.Lock()
        self._stamp, self._value = self._load()
        self._is_failing = False

    @property
    def value(self) -> _Value:
        with self._lock:
            try:
                stamp = _read_stamp(self.path)
                if stamp != self._stamp:
                    self._stamp, self._value = self._load()
                self._is_failing = False
            except (OSError, ConfigError) as error:
                if not self._is_failing:
                    _log.warning("%s; the previous content remains in use", error)
                self._is_failing = True
            return self._value

    def _load(self) -> tuple[tuple[int, int, int], _Value]:
        try:
            stamp = _read_stamp(self.path)
            content = self.path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"cannot read {self.path}: {error.strerror}; check the path and its permissions"
            ) from None
        return stamp, self._read(content)


def _read_stamp(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_ino, found.st_size


@dataclass(frozen=True, slots=True)
class Caller:
    """Owner of a token.

    Args:
        role: Role that the token grants.
        line: Line of the token in the file.
        client: Name of the client, or ``line-`` and the line. Tokens with the same name belong to one
            client.
    """

    role: str
    line: int
    client: str

    def __str__(self) -> str:
        """Describes the token, for the audit log."""
        return f"{self.role} token of line {self.line}"


class Tokens:
    """Bearer tokens and the roles that they grant.

    Args:
        path: File with one token per line: the role, a space, the token, and optionally a space and
            ``client=`` with the name of the client. Lines that start with ``#`` are ignored. The file is
            read again when it changes.

    Raises:
        ConfigError: The file cannot be read, or a line is invalid; the message contains no token.
    """

    def __init__(self, path: Path) -> None:
        self._file = WatchedFile(path, lambda content: _tokens(path, content))

    def check(self, metadata: Mapping[str, str | bytes], role: str) -> Caller:
        """Checks the token of a call, and returns its owner.

        Raises:
            StatusError: UNAUTHENTICATED if the token is missing or unknown; PERMISSION_DENIED if its
                role does not suffice.
        """
        given = metadata.get("authorization", "")
        text = given if isinstance(given, str) else ""
        scheme, _, token = text.partition(" ")
        found: Caller | None = None
        # Compare all tokens in constant time, so that the duration reveals nothing about them.
        for known, caller in self._file.value.items():
            if hmac.compare_digest(known.encode(), token.encode(errors="replace")):
                found = caller
        if scheme.lower() != "bearer" or found is None:
            raise StatusError(
                Status.UNAUTHENTICATED,
                "the call has no valid token; set client.token_file to a file with a token of this "
                "server",
                reason="token",
            )
        if ROLES.index(found.role) < ROLES.index(role):
            raise StatusError(
                Status.PERMISSION_DENIED,
                f"this call needs a token of the role {role}, found the role {found.role}; use "
                "another token",
                reason="role",
            )
        return found


def _tokens(path: Path, content: bytes) -> dict[str, Caller]:
    """Parses a token file: token → owner."""
    try:
        lines = content.decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: tokens must be ASCII; use letters and digits") from None
    tokens: dict[str, Caller] = {}
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        named = _CLIENT.match(words[2]) if len(words) == 3 else None
        if (
            len(words) != (2 if named is None else 3)
            or words[0] not in ROLES
            or not 16 <= len(words[1]) <= _MAX_TOKEN
        ):
            raise ConfigError(
                f"{path}:{number}: must be a role ({', '.join(ROLES[:-1])} or {ROLES[-1]}), a "
                f"blank, and a token of 16 to {_MAX_TOKEN:,} characters; and optionally a blank and "
                "client=NAME, with a name of 1 to 64 letters, digits, '_', '.' or '-'"
            )
        client = f"line-{number}" if named is None else named[1]
        tokens[words[1]] = Caller(words[0], number, client)
    if not 1 <= len(tokens) <= _MAX_TOKENS:
        fix = "remove unused tokens" if tokens else "add a line such as: pull <token>"
        raise ConfigError(
            f"{path}: has {len(tokens):,} tokens, must have 1 to {_MAX_TOKENS:,}; {fix}"
        )
    return tokens


def read_token(content: bytes) -> str:
    """Returns the token in a client's file: its first line.

    Raises:
        ConfigError: The first line is not a token.
    """
    token = content.partition(b"\n")[0].strip()
    if not token or len(token) > _MAX_TOKEN or not token.isascii() or len(token.split()) != 1:
        raise ConfigError(
            "the first line of a token file must be the token, in ASCII; correct the file"
        )
    return token.decode()
