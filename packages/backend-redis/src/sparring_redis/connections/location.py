"""Location of a Redis deployment, parsed from a URL and options."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparring.errors import InvalidArgumentError

__all__ = ["Address", "Location", "parse_location"]

_URL = re.compile(
    r"(?P<scheme>rediss?|unix)(?:\+(?P<mode>sentinel|cluster))?://(?P<rest>[^?#]*)"
    r"(?:\?database=(?P<database>\d+))?\Z"
)
_HOST = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^:\[\]/,\s@]+))(?::(?P<port>\d{1,5}))?\Z"
)
_PORTS = {"sentinel": 26_379}
_FORMS = (
    "redis://host:port/database, unix:///path, redis+sentinel://host:port,host:port/service or "
    "redis+cluster://host:port,host:port, with rediss for TLS"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Address of one server: a host and port, or the path of a Unix socket."""

    host: str
    port: int = 0
    is_path: bool = False

    def __str__(self) -> str:
        if self.is_path:
            return f"unix://{self.host}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Location:
    """Location of a Redis deployment. It contains no secret and may be printed."""

    mode: str
    addresses: tuple[Address, ...]
    service: str | None = None
    database: int = 0
    is_encrypted: bool = False

    @property
    def url(self) -> str:
        """The location as a URL, which `parse_location` parses."""
        names = ",".join(map(str, self.addresses))
        if self.addresses[0].is_path:
            # Passed as a parameter, because the path may end in a number.
            return f"{names}?database={self.database}" if self.database else names
        scheme = "rediss" if self.is_encrypted else "redis"
        mode = "" if self.mode == "standalone" else f"+{self.mode}"
        path = [each for each in (self.service, self.database or None) if each is not None]
        return f"{scheme}{mode}://{'/'.join([names, *map(str, path)])}"

    def __str__(self) -> str:
        names = ",".join(map(str, self.addresses))
        if self.mode == "standalone":
            return f"Redis at {names}"
        if self.mode == "sentinel":
            return f"Redis {self.service!r} of the sentinels at {names}"
        return f"Redis cluster at {names}"


def parse_location(
    url: str,
    mode: str | None,
    *,
    service: str | None = None,
    database: int = 0,
    tls: bool = False,
) -> Location:
    """Parses a URL. The other arguments add values that are missing in the URL.

    Raises:
        InvalidArgumentError: the URL has an unknown form, or contradicts an option.
    """
    matched = _URL.match(url)
    if matched is None:
        raise InvalidArgumentError(f"redis: the URL must have the form {_FORMS}")
    said, rest = matched["mode"], matched["rest"]
    database = int(matched["database"] or database)
    if said is not None and mode not in (None, said, "standalone"):
        raise InvalidArgumentError(
            f"redis: the URL specifies {said} and the option mode {mode}; set only one of them"
        )
    chosen = said or mode or "standalone"
    if matched["scheme"] == "unix":
        return _unix_location(rest, chosen, database)
    hosts, _, path = rest.partition("/")
    addresses = tuple(_address(each, _PORTS.get(chosen, 6379)) for each in hosts.split(","))
    if chosen == "standalone" and len(addresses) > 1:
        raise InvalidArgumentError(
            "redis: a standalone Redis has one host, found several; use redis+cluster or redis+sentinel"
        )
    if chosen == "sentinel":
        name, _, path = path.partition("/")
        service = name or service
        if service is None and mode != "standalone":
            raise InvalidArgumentError(
                "redis: Sentinel requires the name of the master; set the option service"
            )
    if path:
        if not path.isdecimal():
            found = "" if "@" in path else f", found {path!r}"
            raise InvalidArgumentError(
                f"redis: the database must be an integer{found}; use {_FORMS}"
            )
        database = int(path)
    if chosen == "cluster" and database:
        raise InvalidArgumentError(
            f"redis: a cluster has only database 0, found {database}; remove the database"
        )
    is_encrypted = tls or matched["scheme"] == "rediss"
    return Location(chosen, addresses, service, database, is_encrypted)


def _unix_location(path: str, mode: str, database: int) -> Location:
    if mode != "standalone" or not path.startswith("/"):
        raise InvalidArgumentError(
            "redis: a Unix socket is unix:///path with an absolute path, and leads to a "
            "standalone Redis"
        )
    return Location(mode, (Address(path, is_path=True),), database=database)


def _address(text: str, port: int) -> Address:
    matched = _HOST.match(text)
    if matched is None:
        # Does not repeat the text: it may contain a user and a password in front of the host.
        shown = "a name with @ in it" if "@" in text else repr(text)
        raise InvalidArgumentError(f"redis: {shown} must be host:port; use {_FORMS}")
    number = int(matched["port"] or port)
    if not 1 <= number <= 65_535:
        raise InvalidArgumentError(f"redis: the port must be from 1 to 65535, found {number}")
    return Address(matched["six"] or matched["host"], number)
