"""Runs ``sparring serve`` in a separate process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

__all__ = ["ServeProcess"]


class ServeProcess:
    """A server that is ready. Use it in a ``with`` block, which kills the process if it still runs.

    Args:
        config: file of the configuration.
        *options: more words of the command.
        address: address of its port, by default a free one; None is the address in the file.

    Attributes:
        address: address of its port, also after `start` is called again.
        process: the process.
        ready: the log message with which it became ready.
    """

    process: subprocess.Popen[str]
    ready: str

    def __init__(self, config: Path, *options: str, address: str | None = "127.0.0.1:0") -> None:
        self._config, self._options = config, options
        self.address = address
        self.start()

    def start(self) -> None:
        """Starts the process, and waits until it is ready."""
        command = [sys.executable, "-m", "sparring", "serve", str(self._config), *self._options]
        if self.address is not None:
            command.append(f"server.address={self.address}")
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            lines.append(line)
            if "ready on" in line:
                self.ready = line
                self.address = line.split("ready on ")[1].split(": ")[0]
                return
        raise AssertionError("".join(lines))

    def end(self, number: int = signal.SIGKILL) -> int:
        """Sends a signal; returns the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end()
