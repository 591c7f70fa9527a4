"""sparring-tcp: a collective over plain TCP connections."""

from pathlib import Path

from sparring.contracts import Options

__all__ = ["TcpOptions"]


class TcpOptions(Options):
    """Options of the collective `tcp`."""

    folder: Path
    """Folder in which ranks find each other: accessible to all, empty or missing, unique to each job."""
    host: str = "127.0.0.1"
    """Name or address under which other ranks can connect to this machine."""
    start_seconds: float = 120.0
    """Maximum time that a rank waits for the others to start."""
