"""Scheduled saves of a parameter service, on its first shard, and the removal of old ones.

    every_seconds ──► save of all shards, step-….scheduled ──► remove older ones beyond `keep`

If the server ends during a save, the save is canceled and nothing is committed. The push log contains
everything since the last committed save, so nothing is lost.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable

from sparring import list_snapshots, retain
from sparring.adapter import locate, open_root
from sparring.errors import SnapshotError, SparringError
from sparring_serve.declaration import ParametersConfig
from sparring_serve.metrics import ServingMetrics
from sparring_serve.status import StatusError

__all__ = ["ScheduledSaves"]

_log = logging.getLogger(__name__)

_NAME = re.compile(r"step-\d+\.scheduled(-\d+)?(\.e\d+)?\Z")
"""Names of scheduled snapshots; `sparring erase` adds the last part."""
_CANCEL_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
"""Maximum time to wait for the end of a canceled save. Another shard may not answer."""

SaveAll = Callable[[Callable[[int], str], float], "str | None"]


class ScheduledSaves:
    """Saves at intervals on a thread, until `close`.

    Args:
        config: Declaration of the service, with `save.every_seconds`.
        save: Saves all shards: see `ShardSnapshots.save_scheduled`.
        cancel: Cancels the running save of this shard, if there is one.
        metrics: Counts the saves.
    """

    def __init__(
        self,
        config: ParametersConfig,
        save: SaveAll,
        cancel: Callable[[SnapshotError], None],
        metrics: ServingMetrics,
    ) -> None:
        self._config, self._save, self._cancel, self._metrics = config, save, cancel, metrics
        self._folder = config.folders[0].rstrip("/")
        self._saved_at = time.monotonic()
        self._own: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="sparring-scheduled-saves", daemon=True
        )
        metrics.count_save(
            "failed", 0
        )  # so that an alarm also sees the first failure as an increase
        metrics.add_gauges(lambda: {"save_age_seconds": time.monotonic() - self._saved_at})

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Cancels a running save, and ends the thread."""
        self._stop.set()
        end = time.monotonic() + _CLOSE_SECONDS
        while self._thread.is_alive() and time.monotonic() < end:
            # A save that has not started yet cannot be canceled.
            self._cancel(SnapshotError("the save was canceled, because the server ends"))
            self._thread.join(_CANCEL_SECONDS)

    def _run(self) -> None:
        every = self._config.save.every_seconds
        assert every is not None
        due = time.monotonic() + every
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due = time.monotonic() + every
            self.save_now()

    def save_now(self) -> None:
        """Saves if anything was pushed, and removes old scheduled snapshots. Failures are logged."""
        try:
            url = self._save(self._find_name, self._config.save_seconds)
        except Exception as error:
            if isinstance(error, StatusError) and error.reason in ("busy", "not_leader"):
                self._metrics.count_save("skipped")
                return
            if self._stop.is_set():
                _log.info("the scheduled save was canceled, because the server ends")
                return
            self._metrics.count_save("failed")
            _log.warning(
                "the scheduled save failed: %s; the next one is attempted in %g s",
                error,
                self._config.save.every_seconds,
            )
            return
        self._saved_at = time.monotonic()
        if url is None:
            self._metrics.count_save("skipped")
            return
        self._metrics.count_save("saved")
        self._own = [*self._own, url][-self._config.save.keep :]
        self._remove_old()

    def _find_name(self, step: int) -> str:
        name = f"step-{step:012d}.scheduled"
        place = open_root(self._folder)
        names = [name, *(f"{name}-{each}" for each in range(2, 1000))]
        return next(each for each in names if not place.exists(each))

    def _remove_old(self) -> None:
        start = self._config.start
        try:
            urls = list_snapshots(self._folder)
            pinned = [each for each in urls if not _NAME.match(locate(each)[1])]
            if start not in (None, "newest"):
                pinned.append(start if "/" in start else f"{self._folder}/{start}")
            # After a load, steps are lower than those of earlier saves.
            retain(self._folder, self._config.save.keep, newest=self._own, pinned=pinned)
        except SparringError as error:
            _log.warning(
                "old snapshots in %s could not be removed: %s; the next save tries again, or remove them "
                "yourself",
                self._folder,
                error,
            )
