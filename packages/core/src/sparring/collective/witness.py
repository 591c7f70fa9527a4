"""A small process next to the MPI ranks of one machine that sees which of them ends first.

When a rank is killed, MPI's launcher kills all others within milliseconds, and says only the number
of a process. Only the witness is left to name the rank. Each rank holds a connection to
it. The first that closes without a word is the rank that ended, and the witness prints that.

    rank → witness:  one line "RANK PROCESS\\n", then "left\\n", or "told\\n" where the
                     rank itself has said why the job ends

It runs as a file of its own and needs nothing but Python's own library, so it starts in some
hundredths of a second. It ends with the ranks. Ranks on other machines have a witness of their own;
where ranks of several machines ended, the earliest time counts.
"""

from __future__ import annotations

import datetime
import selectors
import socket
import subprocess
import sys
import time

__all__ = ["WitnessedRank", "start_witness", "watch"]

# The launcher ends all ranks within this; what they print meanwhile comes before the last word.
_SETTLE_SECONDS = 0.2


class WitnessedRank:
    """A rank's connection to the witness of its machine."""

    def __init__(self, address: str, rank: int, process: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(address)
        self._socket.sendall(f"{rank} {process}\n".encode())

    def leave(self, *, has_told: bool) -> None:
        """Ends in order; with `has_told`, this rank has said why the whole job ends."""
        try:
            self._socket.sendall(b"told\n" if has_told else b"left\n")
        except OSError:
            # The witness has ended; it had its reasons.
            return
        finally:
            self._socket.close()


def start_witness(address: str, num_local_ranks: int, world_size: int) -> None:
    """Starts the witness of this machine; when it returns, ranks can connect.

    Args:
        address: of a Unix socket; with a leading zero byte it needs no file.
        num_local_ranks: how many ranks connect.
        world_size: ranks of the whole job, for the message.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(num_local_ranks)
        subprocess.Popen(
            [
                sys.executable, "-IS", __file__,
                str(listener.fileno()), str(num_local_ranks), str(world_size),
            ],
            pass_fds=[listener.fileno()],
            stdin=subprocess.DEVNULL,
            # Out of the process group that the launcher kills.
            start_new_session=True,
        )  # fmt: skip


def watch(listener: socket.socket, num_local_ranks: int, world_size: int) -> None:
    """Prints which rank ended first, if one ended without a word."""
    said: dict[socket.socket, str] = {}
    last_word: str | None = None
    limit: float | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        num_ended = 0
        while num_ended < num_local_ranks and (limit is None or time.monotonic() < limit):
            for key, _ in selector.select(None if limit is None else 0.05):
                if key.fileobj is listener:
                    connection, _ = listener.accept()
                    said[connection] = ""
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                connection = key.fileobj
                received = _receive(connection)
                said[connection] += received
                if received.endswith("told\n"):
                    return
                if received:
                    continue
                selector.unregister(connection)
                num_ended += 1
                if last_word is None:
                    last_word = _last_word(said[connection], world_size)
                    limit = None if last_word is None else time.monotonic() + _SETTLE_SECONDS
    if last_word is not None:
        print(f"sparring: {last_word}", file=sys.stderr, flush=True)


def _last_word(said: str, world_size: int) -> str | None:
    """Message on a rank that closed its connection; None if it left in order."""
    lines = said.splitlines() or ["? ?"]
    number, _, process = lines[0].partition(" ")
    if lines[-1] == "left":
        return None
    return (
        f"rank {number} of {world_size} (process {process} on {socket.gethostname()}) ended at "
        f"{datetime.datetime.now():%H:%M:%S.%f} without leaving its group, so the launcher ends the "
        f"job; find out what became of rank {number}, then restart all ranks from the last snapshot"
    )


def _receive(connection: socket.socket) -> str:
    try:
        return connection.recv(65536).decode(errors="replace")
    except ConnectionError:
        return ""


if __name__ == "__main__":
    watch(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3]))
