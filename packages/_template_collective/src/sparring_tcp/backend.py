"""A collective over TCP, with a connection to each rank and a thread that reads from it.

message on the wire:   tag (8 bytes) | size (8 bytes) | bytes

caller's thread   sends messages and waits for messages
reader, per peer  puts received messages into the mailbox and records the notices of the peer
notifier          sends the notices of this rank, so that readers never wait for a peer
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Mapping
from queue import SimpleQueue

import numpy as np

from sparring.contracts import (
    NOTICE_TAG,
    Array,
    Collective,
    Failure,
    Notice,
    NoticeKind,
    Work,
    WorkContext,
)
from sparring.errors import PeerFailure
from sparring_tcp.receiving import CompletedSend, Mailboxes, PendingReceive

_HEADER = struct.Struct("<qq")


class TcpCollective(Collective):
    """One rank of a group of ranks.

    Args:
        rank: rank of this process.
        sockets: a connected socket for each other rank. The collective owns and closes them.
        deadline_seconds: maximum time of each wait.
    """

    def __init__(
        self, rank: int, sockets: Mapping[int, socket.socket], *, deadline_seconds: float
    ) -> None:
        super().__init__(rank, len(sockets) + 1, deadline_seconds=deadline_seconds)
        self.mailboxes = Mailboxes(rank, deadline_seconds)
        self._links = {peer: (each, threading.Lock()) for peer, each in sockets.items()}
        self._notices: SimpleQueue[tuple[int, Notice] | None] = SimpleQueue()
        limit = struct.pack("@ll", int(deadline_seconds), int(deadline_seconds % 1 * 1e6))
        for peer, link in sockets.items():
            link.settimeout(None)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            threading.Thread(target=self._read, args=(peer, link), daemon=True).start()
        self._notifier = threading.Thread(target=self._notify, daemon=True)
        self._notifier.start()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.notify_all_peers(Notice(NoticeKind.LEFT))
        self._notices.put(None)
        self._notifier.join(self.deadline_seconds)
        for link, _ in self._links.values():
            try:
                link.shutdown(
                    socket.SHUT_WR
                )  # messages already sent still arrive; readers continue until the end
            except OSError:
                continue  # the peer closed the connection first

    def notify_all_peers(self, notice: Notice) -> None:
        """Queues a notice for all ranks; the notifier sends it."""
        for peer in self._links:
            self._notices.put((peer, notice))

    def ask(self) -> None:
        """Asks each rank which rank it is waiting for."""
        self.notify_all_peers(Notice(NoticeKind.QUESTION, round=self.mailboxes.inquiry.round))

    def fail(self, peer: int, failure: Failure, context: WorkContext) -> PeerFailure:
        """Notifies all ranks that a wait for `peer` failed, and returns the error to raise."""
        self.notify_all_peers(failure.notice())
        return self.peer_failure(peer, failure.found, context, culprit=failure.culprit)

    def _give_up_impl(self, culprit: int) -> None:
        self.notify_all_peers(Failure.own(culprit).notice())

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        if destination == self.rank:
            self.mailboxes.put(self.rank, tag, buffer.reshape(-1).view(np.uint8).copy())
            return CompletedSend()
        failure = self.mailboxes.gone.get(destination)
        try:
            if failure is None:
                self._write(destination, buffer, tag)
        except OSError as error:
            failure = self.mailboxes.record_failure(
                destination, _connection_failure(destination, error)
            )
        if failure is not None:
            raise self.fail(destination, failure, self.context)
        return CompletedSend()

    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        receiving = PendingReceive(
            self.mailboxes, self.fail, self.ask, buffer, source, self.context
        )
        self.mailboxes.post(source, tag, receiving)
        return receiving

    def _write(self, peer: int, buffer: Array, tag: int) -> None:
        link, lock = self._links[peer]
        with lock:
            link.sendall(_HEADER.pack(tag, buffer.nbytes))
            # An empty message is complete after its header, and the peer may have left since then.
            if buffer.nbytes:
                link.sendall(buffer.reshape(-1).view(np.uint8).data)

    def _notify(self) -> None:
        while (item := self._notices.get()) is not None:
            peer, notice = item
            try:
                self._write(peer, notice.encode(), NOTICE_TAG)
            except OSError:
                continue  # the reader of this connection records the failure

    def _read(self, peer: int, link: socket.socket) -> None:
        try:
            while True:
                tag, size = _HEADER.unpack(_read_exactly(link, _HEADER.size))
                message = np.frombuffer(_read_exactly(link, size), np.uint8)
                if tag == NOTICE_TAG:
                    self._handle_notice(peer, Notice.decode(message.view(np.int64)))
                else:
                    self.mailboxes.put(peer, tag, message)
        except OSError as error:
            self.mailboxes.record_failure(peer, _connection_failure(peer, error))
        link.close()

    def _handle_notice(self, peer: int, notice: Notice) -> None:
        if notice.kind is NoticeKind.QUESTION:
            awaited_rank = self.mailboxes.awaited_rank()
            self._notices.put((peer, Notice(NoticeKind.ANSWER, awaited_rank, notice.round)))
        elif notice.kind is NoticeKind.ANSWER:
            self.mailboxes.record_answer(peer, notice)
        else:
            self.mailboxes.record_failure(peer, Failure.from_notice(peer, notice, self.rank))


def _read_exactly(link: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        num_read = link.recv_into(rest)
        if not num_read:
            raise ConnectionError("the peer closed the connection")
        rest = rest[num_read:]
    return data


def _connection_failure(peer: int, error: OSError) -> Failure:
    return Failure(peer, f"its connection ended: {error}")
