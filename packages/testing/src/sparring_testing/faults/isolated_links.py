"""Network links between processes of one machine, which can be slowed down and cut.

Each rank gets its own network namespace, like a separate machine, and a cable to one switch:

    rank 0  eth0 ────── link0 ┐
    rank 1  eth0 ────── link1 ┼ switch, in its own namespace
    rank 2  eth0 ────── link2 ┘

The machine's own network is not affected. The namespaces disappear when their processes have ended.
Requires Linux with the commands ip, tc, nsenter and unshare. Root is not required if the kernel allows
users to create namespaces.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from sparring.contracts import Closable
from sparring.errors import UnsupportedError

__all__ = ["INTERFACE", "IsolatedLinks", "why_isolation_is_unavailable"]

INTERFACE = "eth0"
"""Name of the network interface of each rank."""

_COMMANDS = ("ip", "nsenter", "tc", "unshare")
_SECONDS = 10.0

# Token bucket of tc: the burst size, and how long a packet may be queued before it is dropped.
_QUEUE = ("burst", "64kb", "latency", "50ms")


class IsolatedLinks(Closable):
    """A network namespace and a link for each rank.

    Args:
        num_ranks: number of ranks.
        bits_per_second: bandwidth of each link in each direction; None for no limit.

    Raises:
        UnsupportedError: this machine does not support it; the message contains the reason.
    """

    def __init__(self, num_ranks: int, bits_per_second: int | None = None) -> None:
        missing = [name for name in _COMMANDS if shutil.which(name) is None]
        if missing:
            raise UnsupportedError(
                f"isolated links: command {missing[0]!r} not found; install iproute2 and util-linux"
            )
        self._holders: list[subprocess.Popen[bytes]] = []
        try:
            self._switch = self._hold([*_new_user(), "unshare", "--net"])
            self._ranks = [
                self._hold([*self._entering(self._switch), "unshare", "--net"])
                for _ in range(num_ranks)
            ]
            self._connect(bits_per_second)
        except BaseException:
            self.close()
            raise

    def command(self, rank: int, command: Sequence[str]) -> list[str]:
        """Returns the command line that runs `command` behind a rank's link, with the same process id."""
        return [*self._entering(self._ranks[rank]), *command]

    def cut(self, rank: int) -> None:
        """Cuts a rank's link. No rank is notified."""
        _run([*self._entering(self._switch), "ip", "link", "set", f"link{rank}", "down"])

    def close(self) -> None:
        """Releases the namespaces. They exist until the processes in them have ended."""
        for holder in self._holders:
            holder.kill()
            holder.wait()
        self._holders.clear()

    def _hold(self, unshare: Sequence[str]) -> int:
        """Starts a process that keeps a new namespace alive and returns its id."""
        holder = subprocess.Popen(
            [*unshare, "sh", "-c", "echo; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        # The process prints a line when it is in the namespace, and nothing if that failed.
        if holder.stdout.readline():
            return holder.pid
        reason = holder.stderr.read().decode(errors="replace").strip()
        raise UnsupportedError(
            f"isolated links: cannot create a network namespace: {reason}; run as root, or allow users "
            "to create namespaces"
        )

    def _entering(self, process: int) -> list[str]:
        user = ["--user", "--preserve-credentials"] if _new_user() else []
        return ["nsenter", "--target", str(process), *user, "--net"]

    def _connect(self, bits_per_second: int | None) -> None:
        at_switch = self._entering(self._switch)
        _run([*at_switch, "ip", "link", "add", "switch", "type", "bridge"])
        _run([*at_switch, "ip", "link", "set", "switch", "up"])
        for rank, process in enumerate(self._ranks):
            at_rank, link = self._entering(process), f"link{rank}"
            peer = ["peer", "name", INTERFACE, "netns", str(process)]
            _run([*at_switch, "ip", "link", "add", link, "type", "veth", *peer])
            _run([*at_switch, "ip", "link", "set", link, "master", "switch", "up"])
            address = f"10.87.{rank // 200}.{rank % 200 + 1}/16"
            _run([*at_rank, "ip", "address", "add", address, "dev", INTERFACE])
            for interface in ("lo", INTERFACE):
                _run([*at_rank, "ip", "link", "set", interface, "up"])
            if bits_per_second is not None:
                rate = ["root", "tbf", "rate", f"{bits_per_second}bit", *_QUEUE]
                _run([*at_rank, "tc", "qdisc", "add", "dev", INTERFACE, *rate])
                _run([*at_switch, "tc", "qdisc", "add", "dev", link, *rate])


def why_isolation_is_unavailable() -> str | None:
    """Tries to create a link, and returns the reason if that fails, otherwise None."""
    try:
        IsolatedLinks(1, 10**9).close()
    except UnsupportedError as error:
        return str(error)
    return None


def _new_user() -> list[str]:
    """Returns a command that makes a user without root rights root in a new user namespace."""
    return [] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user"]


def _run(command: Sequence[str]) -> None:
    ran = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip()
        raise UnsupportedError(
            f"isolated links: {' '.join(command)} failed: {said}; check that the kernel supports "
            "bridges and traffic control"
        )
