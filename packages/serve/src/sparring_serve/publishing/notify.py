"""Notifies servers of a new version, so that they need not wait for their next check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparring_serve.client.grpc_transport import GrpcTransport
from sparring_serve.client.transport import Send
from sparring_serve.config import ClientConfig
from sparring_serve.wire.fields import decode, encode
from sparring_serve.wire.messages import RefreshReply, RefreshRequest

__all__ = ["Notifier"]


class Notifier:
    """Connections to servers, which call their method `Refresh`.

    Args:
        addresses: Addresses of the servers, ``host:port``.
        config: Connection settings. The callers need the role `admin`.
        timeout_seconds: Timeout of each call.

    Raises:
        ConfigError: `config` does not allow a connection to one of them.
    """

    def __init__(
        self, addresses: Sequence[str], config: ClientConfig, timeout_seconds: float
    ) -> None:
        for each in addresses:
            config.check_address(each, f"client of {each}")
        self._addresses, self._timeout = tuple(addresses), timeout_seconds
        self._transport = GrpcTransport(config)

    def notify(self) -> Mapping[str, str]:
        """Makes all servers check for a new version at the same time, and waits for their replies.

        Returns:
            Address → reason, for servers that do not serve a newer version now. They check again by
            themselves.
        """
        request = encode(RefreshRequest())
        sends = [Send(each, "Refresh", request, self._timeout) for each in self._addresses]
        failed: dict[str, str] = {}
        for send, outcome in zip(sends, self._transport.exchange(sends), strict=True):
            if outcome.answer is None:
                failed[send.address] = f"{outcome.status}: {outcome.message}"
                continue
            reply: RefreshReply = decode(RefreshReply, outcome.answer)
            if reply.refused:
                failed[send.address] = reply.refused
        return failed

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()
