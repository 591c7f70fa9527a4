"""The process that publishes snapshots of this run, and the thread that passes them to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparring import SaveResult
from sparring_train.config.sections.publish import PublishConfig

if TYPE_CHECKING:
    from sparring.adapter import Task

__all__ = ["PublishCounters", "PublisherThread", "SavedStep"]

RESULTS = ("published", "failed", "withheld", "skipped", "unchanged")
_EXIT_SECONDS = 10.0
_REPEAT_SECONDS = 60.0
"""Time after which the same problem is reported again."""


@dataclass(slots=True)
class PublishCounters:
    """Totals of publications of this run."""

    publications: dict[str, int] = field(default_factory=lambda: dict.fromkeys(RESULTS, 0))
    """Number of publications by result."""
    publish_seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("save", "convert", "notify"), 0.0)
    )
    """Time of each stage, over all published versions."""
    num_not_notified: int = 0
    """Number of notifications that failed, or after which a server rejected the version."""
    age_seconds: float = 0.0
    """Time from the newest event of the last published version until its publication was complete."""


@dataclass(frozen=True, slots=True)
class SavedStep:
    """A snapshot to publish, when its save has ended."""

    url: str
    """URL of the snapshot, if the save has ended."""
    task: Task[SaveResult] | None
    """The save that is running."""
    event_time: float | None
    """Time of the newest event that was trained."""
    keep_steps: tuple[int, ...] = ()
    """See `sparring_serve.publishing.publisher.PublisherOptions`."""


class PublisherThread:
    """Publishes snapshots one after the other, in a separate process.

    If the process ends, another one repeats the publication, once.

    Args:
        config: the section of the configuration.
        tell: reports a one-line message to the user.
    """

    def __init__(self, config: PublishConfig, tell: Callable[[str], None]) -> None:
        self._config, self._tell = config, tell
        self.counters = PublishCounters()
        self._process: subprocess.Popen[str] | None = None
        self._last_problem, self._told_at = "", 0.0
        self._changed = threading.Condition()  # guards the next attributes
        self._pending: SavedStep | None = None
        self._must_notify = False
        self._is_busy = self._is_closed = self._has_ended = False
        self._start()
        self._thread = threading.Thread(target=self._run, name="sparring-publisher", daemon=True)
        self._thread.start()

    @property
    def is_free(self) -> bool:
        """Whether a snapshot can be passed. At most one waits while another is published."""
        with self._changed:
            return self._pending is None

    def submit(self, saved: SavedStep) -> None:
        """Passes a snapshot, which replaces one that waits."""
        with self._changed:
            self._pending = saved
            self._changed.notify_all()

    def notify(self) -> None:
        """Makes servers check the folder of versions, without a publication."""
        with self._changed:
            self._must_notify = True
            self._changed.notify_all()

    def join(self, timeout: float) -> bool:
        """Waits until all snapshots are published, and returns whether they are."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not (self._pending or self._must_notify or self._is_busy), timeout
            )

    def close(self) -> None:
        """Ends the process after its current publication."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(_EXIT_SECONDS)
        with self._changed:
            # If the thread still runs, it must not start another process.
            self._pending, self._has_ended = None, True
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._pending or self._must_notify or self._is_closed
                )
                saved, self._pending = self._pending, None
                must_notify, self._must_notify = self._must_notify, False
                if saved is None and not must_notify:
                    return
                self._is_busy = True
            try:
                if must_notify:
                    self._notify()
                if saved is not None:
                    self._publish(saved)
            except Exception as error:  # The thread must answer later publications.
                self._count("failed")
                place = self._config.url if saved is None else saved.url
                self._warn("error", f"publishing {place} failed: {type(error).__name__}: {error}")
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    def _notify(self) -> None:
        with suppress(OSError, ValueError):  # Servers check by themselves, too.
            self._ask("", ())

    def _publish(self, saved: SavedStep) -> None:
        save_seconds, url = 0.0, saved.url
        if saved.task is not None:
            saved.task.wait()
            if saved.task.failure() is not None:
                self._count("failed")  # The save reports its error.
                return
            result = saved.task.result()
            save_seconds, url = result.seconds, result.url
        try:
            try:
                answer = self._ask(url, saved.keep_steps)
            except (OSError, ValueError):
                # Another process tries again, because no later version may follow.
                self._stop_process()
                answer = self._ask(url, saved.keep_steps)
                if answer["result"] == "unchanged":
                    # The first process has published it, but may not have notified the servers.
                    self._notify()
        except (OSError, ValueError) as error:
            self._count("failed")
            if self._has_ended:
                return
            self._warn(
                "ended",
                f"publishing {url} failed, because the process that publishes has ended twice "
                f"({error}); training continues, and the next version starts another one",
            )
            self._stop_process()
            return
        self._count(answer["result"])
        if answer["result"] in ("failed", "withheld"):
            self._warn(
                answer["result"],
                f"publishing {url} failed: {answer['reason']}; training continues, and the next "
                "version is attempted"
                if answer["result"] == "failed"
                else answer["reason"],
            )
            return
        if answer["result"] != "published":
            return
        seconds = self.counters.publish_seconds
        seconds["save"] += save_seconds
        seconds["convert"] += answer["convert_seconds"]
        seconds["notify"] += answer["notify_seconds"]
        self.counters.num_not_notified += len(answer["not_notified"])
        if saved.event_time is not None:
            self.counters.age_seconds = time.time() - saved.event_time
        problems = ", ".join(f"{name} ({why})" for name, why in answer["not_notified"].items())
        if problems:
            self._warn(
                problems,
                f"{answer['url']} is published, but these servers do not serve it yet: {problems}; they "
                "check for newer versions by themselves",
            )
        else:
            self._last_problem = ""

    def _count(self, result: str) -> None:
        self.counters.publications[result] += 1

    def _warn(self, problem: str, message: str) -> None:
        """Reports a message, unless the last publication had the same problem."""
        now = time.monotonic()
        if problem != self._last_problem or now - self._told_at >= _REPEAT_SECONDS:
            self._tell(message)
            self._told_at = now
        self._last_problem = problem

    # -- the process ------------------------------------------------------------------------

    def _start(self) -> None:
        config = self._config
        assert config.url is not None
        # The fields of these messages are described in `sparring_serve.publishing.process`.
        settings = {
            "output": config.url,
            "options": {
                "quantize": dict(config.quantize),
                "full_every": config.full_every,
                "keep": config.keep,
                "max_delta_share": config.max_delta_share,
            },
            "notify": config.notify,
            "client": dict(config.client),
            "notify_seconds": config.notify_seconds,
            "item_vectors": config.item_vectors,
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparring_serve.publishing.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Vectors of items must not take the cores of the training.
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )
        self._send(settings)

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def _ask(self, url: str, keep_steps: tuple[int, ...]) -> Mapping[str, Any]:
        """Publishes a snapshot, and returns a `PublishAnswer` as JSON values. Without a URL, servers are
        only notified.

        Raises:
            OSError: the process has ended.
        """
        if self._has_ended:
            raise OSError("the run has ended")
        if self._process is None:
            self._start()
        self._send({"snapshot": url, "keep_steps": keep_steps})
        process = self._process
        assert process is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise OSError(f"exit status {process.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def _stop_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
