"""Epochs of the leaders of shards whose tables learn, as known to one client."""

from __future__ import annotations

import threading

from sparring_serve.wire.fields import MessageError

__all__ = ["ShardEpochs"]


class ShardEpochs:
    """Highest epoch of each shard in the replies to a client. All methods are thread-safe.

    Each new leader of a shard has a higher epoch. A reply with a lower one comes from a replica that is
    no longer the leader, for example because it was suspended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._epochs: dict[int, int] = {}

    def of(self, shard: int) -> int:
        """Returns the highest known epoch of a shard; 0 if it has no replicas."""
        return self._epochs.get(shard, 0)

    def take(self, shard: int, epoch: int) -> None:
        """Takes the epoch of a reply.

        Raises:
            MessageError: The reply is of a former leader.
        """
        if epoch == self._epochs.get(shard, 0):
            return
        with self._lock:
            known = self._epochs.get(shard, 0)
            if epoch < known:
                raise MessageError(
                    f"the reply is of a former leader of shard {shard + 1}, of epoch {epoch}; the newest "
                    f"epoch is {known}. The call is repeated with the other replicas"
                )
            self._epochs[shard] = epoch

    def clear(self) -> None:
        """Forgets all epochs, because the shards have changed."""
        with self._lock:
            self._epochs.clear()
