"""Helpers for tests of services and clients: tables in memory, and a transport that injects failures.

Further modules start servers: `memory_servers` in this process, `front_ends` both servers of lookups with
one interface, and `serve_process` the command. They need sparring-packed.
"""

from sparring_serve.testing.faulty_transport import FaultyTransport, TransportClock
from sparring_serve.testing.memory_tables import MemoryTables
from sparring_serve.testing.raw_connection import Frame, FrameKind, RawConnection, framed_message

__all__ = [
    "FaultyTransport",
    "Frame",
    "FrameKind",
    "MemoryTables",
    "RawConnection",
    "TransportClock",
    "framed_message",
]
