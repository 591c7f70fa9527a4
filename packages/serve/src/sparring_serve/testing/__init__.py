"""Parts for tests of services and clients: tables in memory, and a transport that fails as it is told."""

from sparring_serve.testing.faulty_transport import FaultyTransport, TransportClock
from sparring_serve.testing.memory_tables import MemoryTables

__all__ = ["FaultyTransport", "MemoryTables", "TransportClock"]
