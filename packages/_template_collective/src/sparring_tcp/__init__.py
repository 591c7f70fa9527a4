"""sparring-tcp: ranks exchange buffers over plain TCP connections."""

from pathlib import Path

from sparring.contracts import Options

__all__ = ["TcpOptions"]


class TcpOptions(Options):
    """Options of the collective `tcp`."""

    folder: Path
    """Where ranks meet: a folder that all of them reach, empty or missing, another for each job."""
    host: str = "127.0.0.1"
    """This machine's name or address, as the other ranks reach it."""
    start_seconds: float = 120.0
    """How long a rank waits for the others to come."""
