"""A master, a replica, and a sentinel that monitors them."""

from __future__ import annotations

import time
from contextlib import ExitStack

from sparring.contracts import Closable
from sparring_redis.testing.server import RedisServer

__all__ = ["RedisSentinel"]

_READY_SECONDS = 20.0


class RedisSentinel(Closable):
    """A master and a replica. The sentinel promotes the replica when the master is down.

    Args:
        down_milliseconds: time without a reply after which the master counts as down.
    """

    service = "films"

    def __init__(self, down_milliseconds: int = 500) -> None:
        self._closing = ExitStack()
        try:
            self.master = self._closing.enter_context(RedisServer())
            self.replica = self._closing.enter_context(
                RedisServer(
                    {"replicaof": f"127.0.0.1 {self.master.port}", "repl-diskless-sync-delay": 0}
                )
            )
            name = self.service
            self.sentinel = self._closing.enter_context(
                RedisServer(
                    {
                        "sentinel monitor": f"{name} 127.0.0.1 {self.master.port} 1",
                        "sentinel down-after-milliseconds": f"{name} {down_milliseconds}",
                        "sentinel failover-timeout": f"{name} 3000",
                    },
                    arguments=("--sentinel",),
                )
            )
            self._wait()
        except BaseException:
            self._closing.close()
            raise

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{self.service}"

    def _wait(self) -> None:
        """Waits until the replica is connected and the sentinel knows it."""
        end = time.monotonic() + _READY_SECONDS
        while time.monotonic() < end:
            is_following = b"master_link_status:up" in self.replica.ask("INFO", "replication")
            if is_following and self.sentinel.ask("SENTINEL", "REPLICAS", self.service):
                return
            time.sleep(0.05)
        raise RuntimeError("Redis sentinel: it did not find the replica in time; see its log")

    def close(self) -> None:
        self._closing.close()
