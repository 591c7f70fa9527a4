"""Parts for tests of services and clients: tables in memory, and transports that fail as told."""

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
