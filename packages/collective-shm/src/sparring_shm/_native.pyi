from collections.abc import Sequence

from sparring.contracts import Array

__version__: str

def inbox_bytes(num_ranks: int, capacity: int) -> int:
    """Returns the size of the shared memory into which the ranks of a host send to one rank."""

def read_number(pid: int, address: int) -> int | None:
    """Returns the uint64 at an address of another process, or None if the kernel forbids to read it."""

def allow_reads_of_family(pid: int) -> bool:
    """Allows a process and its descendants to read this process, which Yama forbids by default.

    Returns False if the kernel does not have Yama.
    """

class Request:
    """A message in progress."""

    @property
    def is_pending(self) -> bool: ...
    @property
    def is_lost(self) -> bool:
        """Whether its sender left or ended before its memory was read."""
    @property
    def wrong_bytes(self) -> int | None:
        """Size of the message, if the buffer has another size."""

class Endpoint:
    """One rank's side of the rings; see ``native/rings/endpoint.h``."""

    def __init__(
        self,
        inboxes: Sequence[int],
        rank: int,
        capacity: int,
        direct_bytes: int,
        notice_tag: int,
    ) -> None: ...
    def set_peer(self, peer: int, end_descriptor: int, pid: int) -> None: ...
    def send(self, buffer: Array, peer: int, tag: int) -> Request: ...
    def receive(self, buffer: Array, peer: int, tag: int) -> Request: ...
    def test(self, request: Request) -> bool:
        """Advances all messages; returns whether this one is complete."""

    def progress(self) -> bool: ...
    def wait(self, request: Request, seconds: float) -> None:
        """Returns when the request is complete, an event has arrived, or the time has passed."""

    def take_event(self) -> tuple[int, Sequence[int] | None] | None:
        """Returns the oldest event: a peer and its notice, or None if the peer's process ended."""

    def close(self) -> None: ...
