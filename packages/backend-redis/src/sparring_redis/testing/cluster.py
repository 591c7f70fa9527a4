"""A cluster of masters without replicas."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

from sparring.contracts import Closable
from sparring_redis.connections.connection import Access
from sparring_redis.connections.topology import NUM_SLOTS
from sparring_redis.testing.server import RedisServer

__all__ = ["RedisCluster"]

_MEET_SECONDS = 20.0


class RedisCluster(Closable):
    """A cluster whose masters own equal numbers of slots. A context manager.

    Args:
        num_masters: number of masters.
        settings: additional settings of each server's ``redis.conf``.
        access: credentials that this class uses.
    """

    def __init__(
        self,
        num_masters: int = 3,
        settings: dict[str, Any] | None = None,
        access: Access | None = None,
    ) -> None:
        self._closing = ExitStack()
        chosen = {
            "cluster-enabled": "yes",
            "cluster-config-file": "nodes.conf",
            "cluster-node-timeout": 2000,
            **(settings or {}),
        }
        try:
            self.servers = [
                self._closing.enter_context(RedisServer(chosen, access=access))
                for _ in range(num_masters)
            ]
            self._join()
        except BaseException:
            self._closing.close()
            raise

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        encrypted = "s" if self.servers[0].access.is_encrypted else ""
        return f"redis{encrypted}+cluster://{hosts}"

    def _join(self) -> None:
        num = len(self.servers)
        for i, server in enumerate(self.servers):
            first, end = i * NUM_SLOTS // num, (i + 1) * NUM_SLOTS // num
            server.ask("CLUSTER", "ADDSLOTSRANGE", first, end - 1)
            server.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for server in self.servers[1:]:
            self.servers[0].ask("CLUSTER", "MEET", "127.0.0.1", server.port)
        self.wait()

    def wait(self) -> None:
        """Waits until all nodes know each other and serve their slots.

        Raises:
            RuntimeError: this did not happen in time.
        """
        end_time = time.monotonic() + _MEET_SECONDS
        while not all(self._knows_all(server) for server in self.servers):
            if time.monotonic() > end_time:
                raise RuntimeError(
                    "Redis cluster: the nodes did not find each other in time; see their logs"
                )
            time.sleep(0.05)

    def _knows_all(self, server: RedisServer) -> bool:
        is_well = b"cluster_state:ok" in server.ask("CLUSTER", "INFO")
        return (
            is_well
            and b"fail" not in server.ask("CLUSTER", "NODES")
            and len(server.ask("CLUSTER", "SLOTS")) == len(self.servers)
        )

    def close(self) -> None:
        self._closing.close()
