"""The shard map of a parameter service in the coordination store, which decides who owns a partition."""

from __future__ import annotations

from dataclasses import replace

from sparring.errors import SparringError, StorageIOError
from sparring_serve.replication.owner import service_key
from sparring_serve.replication.store import CoordinationStore
from sparring_serve.tables.shard_ranges import ShardReplicas

__all__ = ["MapStore", "map_key"]


def map_key(folder: str) -> str:
    """Returns the key of the map of a service."""
    return service_key(folder, "map")


class MapStore:
    """The shard map of one service.

    Args:
        store: Store of all servers; closed with this object.
        key: Key of the map.
    """

    def __init__(self, store: CoordinationStore, key: str) -> None:
        self._store, self._key = store, key

    def read(self) -> ShardReplicas | None:
        """Returns the map; None if no server has written one.

        Raises:
            StorageIOError: The store cannot be reached, or contains something else.
        """
        found = self._store.read(self._key)
        if found is None:
            return None
        try:
            return ShardReplicas.from_bytes(found)
        except SparringError as error:
            raise StorageIOError(
                f"the coordination store has no shard map under {self._key!r}: {error}; use another "
                "database of the store"
            ) from error

    def close(self) -> None:
        """Closes the connections to the store."""
        self._store.close()

    def replace(self, before: ShardReplicas | None, after: ShardReplicas) -> bool:
        """Replaces the map, unless it changed in the meantime; returns whether it was replaced.

        Raises:
            StorageIOError: The store cannot be reached; the map may have changed.
        """
        expected = None if before is None else before.to_bytes()
        return self._store.replace(self._key, expected, after.to_bytes())

    def renumber(self, initial: ShardReplicas, shard: int) -> ShardReplicas:
        """Gives the map the next number, so that a change that a killed server had sent fails.

        Args:
            initial: Map to write if there is none.
            shard: Shard whose addresses are taken from `initial`.
        """
        while True:
            found = self.read()
            after = initial
            if found is not None:
                shards = list(found.shards)
                if shard < found.num_shards:
                    shards[shard] = initial.shards[shard]
                after = replace(found, shards=tuple(shards), number=found.number + 1)
            if self.replace(found, after):
                return after
