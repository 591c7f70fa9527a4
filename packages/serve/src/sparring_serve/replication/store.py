"""Small values that all servers of a service agree on, such as the leader of a shard.

A store has one way to change a value: `CoordinationStore.replace`, an atomic comparison with the value
that the caller read before. Leases and fencing are built from it. No consensus protocol is implemented
here, because Redis or another store already provides what is needed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sparring.contracts import find_passwords
from sparring.errors import ConfigError, StorageIOError

if TYPE_CHECKING:
    import redis

__all__ = ["CoordinationStore", "MemoryStore", "RedisStore", "open_store"]

_REPLACE = """
local found = redis.call('GET', KEYS[1])
if ARGV[1] == 'absent' then
  if found then return 0 end
elseif found ~= ARGV[2] then
  return 0
end
if ARGV[3] == 'absent' then
  redis.call('DEL', KEYS[1])
elseif ARGV[5] == '0' then
  redis.call('SET', KEYS[1], ARGV[4])
else
  redis.call('SET', KEYS[1], ARGV[4], 'PX', ARGV[5])
end
return 1
"""
"""Redis runs a script atomically. Arguments: whether a value is expected, the expected value, whether
there is a new value, the new value, and its TTL in milliseconds or 0."""


class CoordinationStore(Protocol):
    """Values by key that several processes read and change. All methods are thread-safe."""

    def read(self, key: str) -> bytes | None:
        """Returns the value of a key; None if it is absent or has expired.

        Raises:
            StorageIOError: The store cannot be reached.
        """
        ...

    def replace(
        self,
        key: str,
        before: bytes | None,
        after: bytes | None,
        ttl_seconds: float | None = None,
    ) -> bool:
        """Changes a value atomically, unless another process has changed it.

        Args:
            key: The key.
            before: The value that the key must have; None if it must be absent.
            after: The new value; None removes the key.
            ttl_seconds: Time after which the store removes the new value; None keeps it.

        Returns:
            Whether the key had the value `before`. If not, nothing was changed.

        Raises:
            StorageIOError: The store cannot be reached. The value may have been changed: read it.
        """
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


class MemoryStore:
    """A store in the memory of this process, for tests and simulations.

    Args:
        clock: Returns the time in seconds, for TTLs.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, tuple[bytes, float | None]] = {}

    def read(self, key: str) -> bytes | None:
        with self._lock:
            return self._read(key)

    def replace(
        self,
        key: str,
        before: bytes | None,
        after: bytes | None,
        ttl_seconds: float | None = None,
    ) -> bool:
        with self._lock:
            if self._read(key) != before:
                return False
            if after is None:
                self._values.pop(key, None)
            else:
                end = None if ttl_seconds is None else self._clock() + ttl_seconds
                self._values[key] = (after, end)
            return True

    def close(self) -> None:
        self._values.clear()

    def _read(self, key: str) -> bytes | None:
        value, end = self._values.get(key, (None, None))
        if end is not None and self._clock() >= end:
            del self._values[key]
            return None
        return value


class RedisStore:
    """A store in Redis.

    Acknowledged changes must survive a restart of Redis: start it with ``appendonly yes``.

    Args:
        client: Client of redis-py, without retries: a repeated comparison would find its own value.
        url: URL of the server, for messages.
    """

    def __init__(self, client: redis.Redis, url: str) -> None:
        self._client, self._url = client, url
        self._replace: Any = client.register_script(_REPLACE)

    def read(self, key: str) -> bytes | None:
        found: bytes | None = self._run("reading", lambda: self._client.get(key))
        return found

    def replace(
        self,
        key: str,
        before: bytes | None,
        after: bytes | None,
        ttl_seconds: float | None = None,
    ) -> bool:
        milliseconds = 0 if ttl_seconds is None else max(1, round(1000 * ttl_seconds))
        words = [
            "absent" if before is None else "present",
            before or b"",
            "absent" if after is None else "present",
            after or b"",
            milliseconds,
        ]
        return bool(self._run("changing", lambda: self._replace(keys=[key], args=words)))

    def close(self) -> None:
        self._client.close()

    def _run(self, what: str, call: Callable[[], Any]) -> Any:
        import redis

        try:
            return call()
        except redis.RedisError as error:
            raise StorageIOError(
                f"{what} a value in the coordination store {self._url} failed: {error}; check that the "
                "server runs and can be reached"
            ) from error


def open_store(url: str, *, timeout_seconds: float = 1.0) -> CoordinationStore:
    """Opens the store of a service. It connects when it is first used.

    Args:
        url: ``redis://host:port/database``, or ``rediss://`` for TLS. A password may be in the
            environment variable ``REDIS_PASSWORD``.
        timeout_seconds: Maximum time of each operation.

    Raises:
        ConfigError: The URL has another scheme, or redis-py is not installed.
    """
    import os

    scheme = url.partition("://")[0]
    if scheme not in ("redis", "rediss"):
        raise ConfigError(
            f"the coordination store must be a URL such as redis://10.0.0.9:6379/0, found {url!r}"
        )
    if any(find_passwords(url)):
        raise ConfigError(
            "the URL of the coordination store must not contain a password, because it is printed; set "
            "the environment variable REDIS_PASSWORD"
        )
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise ConfigError(
            f"the coordination store {url} needs redis-py: pip install 'sparring-serve[replication]'"
        ) from error
    options: Mapping[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),
        "password": os.environ.get("REDIS_PASSWORD"),
    }
    try:
        client = redis.Redis.from_url(url, **options)
    except ValueError as error:
        raise ConfigError(f"the coordination store {url}: {error}; correct the URL") from error
    return RedisStore(client, url)
