"""The options of the ``redis`` storage and of the ``redis`` rendezvous."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from sparring.contracts import SECRET_IN_CONFIG, Options, WholeNumber
from sparring.errors import InvalidArgumentError
from sparring_redis.connections.location import Location, parse_location

__all__ = ["Mode", "RedisOptions", "RedisRendezvousOptions", "RedisServerOptions"]

Mode = Literal["standalone", "sentinel", "cluster"]

_NAME = r"^[A-Za-z0-9_.:\-]{1,100}$"


def _without_password(text: Any) -> Any:
    """Refuses a place with a password in it, and never repeats it: configurations are printed."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if isinstance(text, str) and "@" in text:
        raise PydanticCustomError(
            SECRET_IN_CONFIG,
            "must hold no user and no password, because configurations are printed; give the user "
            "as username, and the password by password_environment or password_file",
        )
    return text


def _is_variable(name: Any) -> Any:
    """Refuses what cannot be the name of a variable: it may be the password itself."""
    if isinstance(name, str) and not _VARIABLE.match(name):
        raise PydanticCustomError(
            SECRET_IN_CONFIG,
            "must be the name of an environment variable: letters, digits and _, no digit first; "
            "it is not the place for the password itself",
        )
    return name


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

LocationText = Annotated[str, BeforeValidator(_without_password)]
Variable = Annotated[str, BeforeValidator(_is_variable)]


class RedisServerOptions(Options):
    """Where Redis is, and how to get in. Passwords are named, never given."""

    url: LocationText | None = None
    """``redis://host:port/database``, ``unix:///path?database=3``, ``redis+sentinel://host:port,host:port/service``
    or ``redis+cluster://host:port,host:port``; ``rediss`` in place of ``redis`` for TLS. Without it
    `host` and `port`, or `unix_socket`."""
    host: LocationText | None = None
    """The host, where there is no `url`; 127.0.0.1 if nothing is said."""
    port: WholeNumber | None = Field(default=None, ge=1, le=65_535)
    """The port, where there is no `url`; 6379 if nothing is said."""
    unix_socket: Path | None = None
    """The file of a Unix socket, where there is no `url` and no `host`."""
    mode: Mode | None = None
    """Kind of deployment there; a URL says it by its scheme. ``sentinel`` needs `service`."""
    service: str | None = None
    """The name of the master that Sentinel watches."""
    database: WholeNumber = Field(default=0, ge=0)
    """The number of the database, where the URL has none. A cluster has only 0."""
    username: str | None = None
    """The ACL user; without it Redis' user ``default``."""
    password_environment: Variable | None = None
    """The environment variable that holds the password."""
    password_file: Path | None = None
    """The file that holds the password; line breaks at its end are no part of it."""
    sentinel_username: str | None = None
    """The ACL user of the sentinels themselves."""
    sentinel_password_environment: Variable | None = None
    """The environment variable that holds the sentinels' password."""
    sentinel_password_file: Path | None = None
    """The file that holds the sentinels' password."""
    tls: bool = False
    """Encrypt, also where the URL does not say so; the server's certificate is checked."""
    tls_ca_file: Path | None = None
    """Certificates to trust, PEM; without it those of the system."""
    tls_certificate_file: Path | None = None
    """Our own certificate, PEM, where the server asks for one."""
    tls_key_file: Path | None = None
    """The key of our own certificate, PEM, without a password; left out where the certificate's
    file holds it."""
    tls_check_hostname: bool = True
    """Whether the server's certificate must name the host that we asked for."""
    deadline_seconds: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """The longest that one call may take, reconnecting included."""

    @model_validator(mode="after")
    def _is_one_place(self) -> RedisServerOptions:
        ways = {
            "url": self.url is not None,
            "host or port": self.host is not None or self.port is not None,
            "unix_socket": self.unix_socket is not None,
        }
        given = [name for name, is_given in ways.items() if is_given]
        if len(given) > 1:
            raise PydanticCustomError(
                "several_places", "give one of {given}, not both", {"given": " and ".join(given)}
            )
        for name in ("password", "sentinel_password"):
            if getattr(self, f"{name}_environment") and getattr(self, f"{name}_file"):
                raise PydanticCustomError(
                    "several_passwords",
                    "give {name}_environment or {name}_file, not both",
                    {"name": name},
                )
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            raise PydanticCustomError(
                "key_without_certificate",
                "tls_key_file is the key of tls_certificate_file; name that file too",
            )
        try:
            self.place()
        except InvalidArgumentError as error:
            raise PydanticCustomError("redis_place", "{reason}", {"reason": str(error)}) from error
        return self

    def place(self) -> Location:
        """Where Redis is.

        Raises:
            InvalidArgumentError: the options contradict each other.
        """
        if self.url is not None:
            url = self.url
        elif self.unix_socket is not None:
            url = f"unix://{self.unix_socket.absolute()}"
        else:
            host = self.host or "127.0.0.1"
            url = f"redis://{f'[{host}]' if ':' in host else host}:{self.port or 6379}"
        return parse_location(
            url, self.mode, service=self.service, database=self.database, tls=self.tls
        )

    def password(self) -> str | None:
        """The password, read now.

        Raises:
            InvalidArgumentError: what was named for it does not exist or is empty.
        """
        return _secret("password", self.password_environment, self.password_file)

    def sentinel_password(self) -> str | None:
        """The sentinels' password, read now; raises as `password` does."""
        return _secret(
            "sentinel_password", self.sentinel_password_environment, self.sentinel_password_file
        )


class RedisOptions(RedisServerOptions):
    """Options of a table in Redis: the server, and the table's layout there."""

    prefix: str = Field(default="sparring", pattern=_NAME)
    """Prefix of all names in Redis; jobs that share a Redis choose different ones."""
    num_buckets: WholeNumber | None = Field(default=None, ge=1, le=4096)
    """Hashes that a new table is dealt to, a power of two; 256 if nothing is said. More spread a
    table more evenly over a cluster, fewer make small batches cheaper. Fixed at creation."""
    allow_eviction: bool = False
    """Take a server that removes rows when its memory is full, as a cache may: a row that is gone
    reads as its initial value."""

    @field_validator("num_buckets")
    @classmethod
    def _is_power_of_two(cls, num_buckets: int | None) -> int | None:
        if num_buckets is not None and num_buckets & (num_buckets - 1):
            raise PydanticCustomError("no_power_of_two", "must be a power of two, as 256")
        return num_buckets


class RedisRendezvousOptions(RedisServerOptions):
    """Where ranks meet."""

    job: str = Field(default="job", pattern=_NAME)
    """The name of the meeting. Jobs that run at the same time, and each restart of one, need
    names of their own."""
    prefix: str = Field(default="sparring", pattern=_NAME)
    """Prefix of all names in Redis."""
    world_size: WholeNumber | None = Field(default=None, ge=1, le=4096)
    """The number of ranks, where they get their numbers in the order of arrival; without it the
    launcher's variables say rank and world size."""
    start_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """How long a rank waits for the others to arrive, where `world_size` is given."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where this rank computes; ``cuda`` is the GPU of its local rank."""
    time_to_live_seconds: WholeNumber = Field(default=86_400, ge=1)
    """After so many seconds Redis forgets what was set."""


def _secret(name: str, variable: str | None, path: Path | None) -> str | None:
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            # A password may well have the form of a name, but not of one that is usual.
            shown = f"the variable {variable!r}" if variable.isupper() else "a variable"
            raise InvalidArgumentError(
                f"redis: {name}_environment names {shown}, which is "
                f"{'empty' if value == '' else 'not set'}; set it to the password"
            )
        return value
    if path is None:
        return None
    try:
        value = path.read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or _reason_of(error)
        raise InvalidArgumentError(
            f"redis: {name}_file {path} cannot be read ({reason}); name a file with the password"
        ) from None
    if not value:
        raise InvalidArgumentError(
            f"redis: {name}_file {path} is empty; write the password into it"
        )
    return value


def _reason_of(error: Exception) -> str:
    # A path with a NUL character in it is a ValueError too.
    return "no UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
