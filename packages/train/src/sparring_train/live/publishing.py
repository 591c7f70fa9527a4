"""Publishes versions of the model while it is trained: decides when, saves, and passes on the snapshot.

step ──► due? ──► delta snapshot, saved concurrently ──► process: serving snapshot ──► notified servers
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from sparring import State
from sparring.adapter import Coordinator
from sparring.contracts import Closable
from sparring.errors import ConfigError, PluginError
from sparring_train.columns import Cut
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.publish import PublishConfig
from sparring_train.live.publisher_process import PublisherThread, SavedStep
from sparring_train.run.ranks import Ranks
from sparring_train.run.snapshots import RunSnapshots

if TYPE_CHECKING:
    from sparring import StepContainer

__all__ = ["RunPublisher"]

_SHARE = 0.5
"""Share of one core for a save that is published. With the default on few cores, each version would wait
for seven times the processor time of its save."""
_WAIT_SECONDS = 5.0
"""Time for which the other ranks wait for the first one at once."""


class RunPublisher(Closable):
    """Publishes as configured. All ranks create one and make the same calls; the first rank publishes.

    Args:
        container: container of the tables.
        config: configuration of the run.
        snapshots: saves the snapshots that are published.
        tell: reports a one-line message to the user.

    Raises:
        PluginError: sparring-serve is not installed, here or on the first rank.
    """

    def __init__(
        self,
        container: StepContainer,
        config: RunConfig,
        snapshots: RunSnapshots,
        tell: Callable[[str], None],
    ) -> None:
        self._config, self._snapshots = config.publish, snapshots
        self._ranks = Ranks(container.collective, container.quiesce)
        self._deadline_seconds = config.snapshots.deadline_seconds
        self._wait_seconds = min(_WAIT_SECONDS, config.deadline_seconds / 2)
        self._tell = tell
        self._thread: PublisherThread | None = None
        self._last_time: float | None = None
        self._event_time: float | None = None
        self._published_at = -math.inf
        self._step = -1
        self._url: str | None = None
        self._is_skipped = False
        self.withhold: Callable[[], bool] = lambda: False
        """Returns whether a due version is withheld; equal on all ranks."""
        self.keep_steps: tuple[int, ...] = ()
        """Steps whose versions are kept; see `PublisherOptions` of sparring-serve."""
        if self._config.url is None:
            return
        error: Exception | None = None
        try:
            if self._ranks.is_first:
                self._thread = _open_thread(self._config, tell)
        except Exception as failure:  # All ranks must raise.
            error = failure
        Coordinator(container.collective, "publisher of this run").agree(error)

    def after_step(
        self, step: int, cut: Cut | None, states: Callable[[], Mapping[str, State]]
    ) -> None:
        """Saves and publishes the state after a step, if a version is due.

        Args:
            step: number of steps made.
            cut: events of the step; None if data are not a stream.
            states: returns the state to save in addition to the tables.
        """
        if self._config.url is not None and self._is_due(cut) and self._decides_to_publish():
            self._save(step, states)

    def on_idle(self, step: int, states: Callable[[], Mapping[str, State]]) -> None:
        """Publishes the last step before a pause of the stream, because its events do not become older.

        Args:
            step: number of steps made.
            states: see `after_step`.
        """
        if self._config.url is None or step in {0, self._step} or self.withhold():
            return
        waited = time.monotonic() - self._published_at
        if self._first_ranks(self._is_free and waited >= self._config.every_seconds):
            self._save(step, states)

    def _is_due(self, cut: Cut | None) -> bool:
        """Returns whether enough time has passed since the last version; equal on all ranks."""
        if cut is None:
            now: float | None = float(self._ranks.gathered(np.array([time.time()]))[0])
        else:
            now = cut.event_time
        if now is None:
            return False
        # Events of a partition that is behind do not move the time back.
        self._event_time = now = max(now, self._event_time or now)
        return self._last_time is None or now - self._last_time >= self._config.every_seconds

    def _decides_to_publish(self) -> bool:
        """Returns whether a due version is published; equal on all ranks."""
        if self.withhold():
            self._count("withheld")
            self._last_time = self._event_time
            return False
        if self._first_ranks(self._is_free):
            return True
        # The next step tries again.
        if not self._is_skipped:
            self._count("skipped")
        self._is_skipped = True
        return False

    @property
    def _is_free(self) -> bool:
        """Whether the previous version is saved, and at most one version is being published."""
        running = self._snapshots.running
        return (
            self._thread is not None
            and self._thread.is_free
            and (running is None or running.done())
        )

    def _first_ranks(self, answer: bool) -> bool:
        """Returns the answer of the first rank."""
        return bool(self._ranks.gathered(np.array([answer]))[0])

    def _count(self, result: str) -> None:
        if self._thread is not None:
            self._thread.counters.publications[result] += 1

    def _save(self, step: int, states: Callable[[], Mapping[str, State]]) -> None:
        url = self._snapshots.save(step, states(), share=_SHARE)
        self._url = url or self._snapshots.last_url
        self._last_time, self._step, self._is_skipped = self._event_time, step, False
        self._published_at = time.monotonic()
        self._submit()

    def _submit(self) -> None:
        """Passes the newest snapshot to the thread, on the first rank."""
        task, url = self._snapshots.running, self._snapshots.last_url
        if self._thread is not None and (task is not None or url is not None):
            self._thread.submit(SavedStep(url or "", task, self._event_time, self.keep_steps))

    def notify(self) -> None:
        """Makes the servers of `publish.notify` check the folder again, because its gate has closed."""
        if self._thread is not None and self._config.notify:
            self._thread.notify()

    def end(self) -> None:
        """Publishes the last snapshot of the run, and waits until it is published."""
        if self._config.url is None:
            return
        if self._snapshots.last_url != self._url and not self.withhold():
            self._submit()
        limit = time.monotonic() + self._deadline_seconds
        thread = self._thread
        # The deadline of an exchange between ranks may be shorter than the publication.
        while not self._first_ranks(
            thread is not None and (thread.join(self._wait_seconds) or time.monotonic() >= limit)
        ):
            pass
        if thread is not None and not thread.join(0):
            self._tell(
                f"the last version is not published after {self._deadline_seconds:g} s; run: sparring "
                f"publish {self._snapshots.last_url} --output {self._config.url}"
            )

    def metrics(self) -> Mapping[str, Any]:
        """Returns the section `publishing` of the metrics of the first rank."""
        if self._thread is None:
            return {}
        return {"publishing": asdict(self._thread.counters)}

    def close(self) -> None:
        """Ends the process that publishes."""
        if self._thread is not None:
            self._thread.close()


def _open_thread(config: PublishConfig, tell: Callable[[str], None]) -> PublisherThread:
    if find_spec("sparring_serve") is None:
        raise PluginError(
            "publish.url needs sparring-serve, which is not installed; run: pip install sparring-serve"
        )
    from sparring_serve import ClientConfig

    try:
        client = ClientConfig.model_validate(dict(config.client))
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(["publish.client", *map(str, problem["loc"])])
        raise ConfigError(
            f"{name}: {problem['msg']}; use keys of the section client of the lookup service",
            setting="publish.client",
        ) from None
    for each in config.notify:
        client.check_address(each, f"publish.client of {each}")
    return PublisherThread(config, tell)
