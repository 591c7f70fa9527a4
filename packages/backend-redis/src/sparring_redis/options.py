"""Options of the ``redis`` storage and of the ``redis`` rendezvous."""

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
    """Rejects a location with a password. The error omits the value, because errors are printed."""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if isinstance(text, str) and "@" in text:
        raise PydanticCustomError(
            SECRET_IN_CONFIG,
            "must not contain a user or password, because configurations are printed; set username, and "
            "password_environment or password_file",
        )
    return text


def _is_variable(name: Any) -> Any:
    """Rejects invalid names of environment variables. The error omits the value: it may be a password."""
    if isinstance(name, str) and not _VARIABLE.match(name):
        raise PydanticCustomError(
            SECRET_IN_CONFIG,
            "must be the name of an environment variable (letters, digits and _, not starting with a "
            "digit), not the password itself",
        )
    return name


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

LocationText = Annotated[str, BeforeValidator(_without_password)]
Variable = Annotated[str, BeforeValidator(_is_variable)]


class RedisServerOptions(Options):
    """Location and credentials of Redis. Passwords are given by reference only."""

    url: LocationText | None = None
    """``redis://host:port/database``, ``unix:///path?database=3``, ``redis+sentinel://host:port,host:port/service``
    or ``redis+cluster://host:port,host:port``; use ``rediss`` instead of ``redis`` for TLS. Without it,
    `host` and `port` or `unix_socket` are used."""
    host: LocationText | None = None
    """Host, if there is no `url`. The default is 127.0.0.1."""
    port: WholeNumber | None = Field(default=None, ge=1, le=65_535)
    """Port, if there is no `url`. The default is 6379."""
    unix_socket: Path | None = None
    """Path of a Unix socket, if there is neither `url` nor `host`."""
    mode: Mode | None = None
    """Kind of deployment; a URL specifies it by its scheme. ``sentinel`` requires `service`."""
    service: str | None = None
    """Name of the master that Sentinel monitors."""
    database: WholeNumber = Field(default=0, ge=0)
    """Number of the database, if the URL does not contain one. A cluster supports only 0."""
    username: str | None = None
    """ACL user. The default is Redis' user ``default``."""
    password_environment: Variable | None = None
    """Environment variable that contains the password."""
    password_file: Path | None = None
    """File that contains the password. Line breaks at its end are ignored."""
    sentinel_username: str | None = None
    """ACL user of the sentinels."""
    sentinel_password_environment: Variable | None = None
    """Environment variable that contains the password of the sentinels."""
    sentinel_password_file: Path | None = None
    """File that contains the password of the sentinels."""
    tls: bool = False
    """Whether to use TLS even if the URL does not specify it. The server's certificate is verified."""
    tls_ca_file: Path | None = None
    """PEM file with the trusted certificates. By default, the system's certificates are trusted."""
    tls_certificate_file: Path | None = None
    """PEM file with the client certificate, if the server requires one."""
    tls_key_file: Path | None = None
    """PEM file with the key of the client certificate, without a password. Not required if the
    certificate file contains the key."""
    tls_check_hostname: bool = True
    """Whether the server's certificate must match the host."""
    deadline_seconds: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    """Maximum time of one call, including reconnects."""

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
                "several_places", "set only one of {given}", {"given": " and ".join(given)}
            )
        for name in ("password", "sentinel_password"):
            if getattr(self, f"{name}_environment") and getattr(self, f"{name}_file"):
                raise PydanticCustomError(
                    "several_passwords",
                    "set {name}_environment or {name}_file, not both",
                    {"name": name},
                )
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            raise PydanticCustomError(
                "key_without_certificate",
                "tls_key_file is set without tls_certificate_file; set that file too",
            )
        try:
            self.place()
        except InvalidArgumentError as error:
            raise PydanticCustomError("redis_place", "{reason}", {"reason": str(error)}) from error
        return self

    def place(self) -> Location:
        """Returns the location of Redis.

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
        """Reads the password now, or returns None if none is configured.

        Raises:
            InvalidArgumentError: the variable or file does not exist or is empty.
        """
        return _secret("password", self.password_environment, self.password_file)

    def sentinel_password(self) -> str | None:
        """Reads the password of the sentinels; raises the same errors as `password`."""
        return _secret(
            "sentinel_password", self.sentinel_password_environment, self.sentinel_password_file
        )


class RedisOptions(RedisServerOptions):
    """Options of a table in Redis: the server and the layout of the table."""

    prefix: str = Field(default="sparring", pattern=_NAME)
    """Prefix of all names in Redis. Jobs that share a Redis need different prefixes."""
    num_buckets: WholeNumber | None = Field(default=None, ge=1, le=4096)
    """Number of hashes of a new table, a power of two. The default is 256. More hashes distribute a
    table more evenly over a cluster; fewer make small batches cheaper. It cannot be changed later."""
    allow_eviction: bool = False
    """Whether to accept a server that evicts rows when its memory is full. An evicted row reads as its
    initial value."""

    @field_validator("num_buckets")
    @classmethod
    def _is_power_of_two(cls, num_buckets: int | None) -> int | None:
        if num_buckets is not None and num_buckets & (num_buckets - 1):
            raise PydanticCustomError("no_power_of_two", "must be a power of two, for example 256")
        return num_buckets


class RedisRendezvousOptions(RedisServerOptions):
    """Options of the rendezvous in Redis."""

    job: str = Field(default="job", pattern=_NAME)
    """Name of the rendezvous. Jobs that run at the same time need different names, and so does each
    restart of a job, except by torchrun."""
    prefix: str = Field(default="sparring", pattern=_NAME)
    """Prefix of all names in Redis."""
    world_size: WholeNumber | None = Field(default=None, ge=1, le=4096)
    """Number of ranks, if ranks are numbered in the order of arrival. Without it, the environment
    variables of the launcher specify rank and world size."""
    start_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """Maximum time that a rank waits for the others, if `world_size` is set or torchrun starts the
    ranks."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of this rank; ``cuda`` is the GPU with the number of its local rank."""
    time_to_live_seconds: WholeNumber = Field(default=86_400, ge=1)
    """Time in seconds after which Redis deletes the values of the rendezvous."""


def _secret(name: str, variable: str | None, path: Path | None) -> str | None:
    if variable is not None:
        value = os.environ.get(variable)
        if not value:
            # An unusual name may be the password itself, so it is not repeated.
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
            f"redis: cannot read {name}_file {path} ({reason}); set it to a file with the password"
        ) from None
    if not value:
        raise InvalidArgumentError(
            f"redis: {name}_file {path} is empty; write the password into it"
        )
    return value


def _reason_of(error: Exception) -> str:
    # A path with a NUL character raises ValueError too.
    return "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)
