"""Change notes of a run: decides when to publish one, and handles failures."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from sparring.adapter import Coordinator
from sparring.contracts import Closable
from sparring.errors import ConfigError, SparringError
from sparring_tiered import ChangePublisher
from sparring_train.config.run import RunConfig

if TYPE_CHECKING:
    from sparring import PluginManager, StepContainer

__all__ = ["RunNotes"]


class RunNotes(Closable):
    """Publishes notes as configured. All ranks create one and make the same calls.

    Args:
        container: the container of the tables.
        config: the configuration of the run.
        manager: finds the storage.
        tell: shows one line to the user.

    Raises:
        ConfigError: servers cannot read the rows of the storage.
        InvalidArgumentError: the storage does not keep notes, and no folder is specified for them.
        UnsupportedError: the columns of a table are divided over ranks.
    """

    def __init__(
        self,
        container: StepContainer,
        config: RunConfig,
        manager: PluginManager,
        tell: Callable[[str], None],
    ) -> None:
        self._container = container
        self._chosen = config.change_notes
        self._tell = tell
        self._published_at = time.monotonic()
        self._published_step = -1
        self._publisher: ChangePublisher | None = None
        if not self._chosen.is_on:
            return
        _check_storage(container, manager)
        self._publisher = ChangePublisher(
            container, url=self._chosen.url, keep=self._chosen.keep, run=config.snapshots.url or ""
        )

    def after_step(self, step: int) -> None:
        """Publishes a note if one is due."""
        if self._publisher is not None and self._is_due(step):
            self._publish(step)

    def end(self, step: int) -> None:
        """Publishes the changes of the last steps."""
        if self._publisher is not None and self._published_step != step:
            self._publish(step)

    def close(self) -> None:
        """Closes the publisher without publishing."""
        if self._publisher is not None:
            self._publisher.close()

    def _publish(self, step: int) -> None:
        assert self._publisher is not None
        self._published_at = time.monotonic()
        self._published_step = step
        try:
            self._publisher.publish(step)
        except SparringError as error:
            # The next note contains these changes, too. A failed storage also fails the next step.
            self._tell(
                f"publishing change notes after step {step} failed: {type(error).__name__}: {error}; "
                "training continues, and the next note will contain these changes"
            )

    def _is_due(self, step: int) -> bool:
        chosen = self._chosen
        if chosen.every_steps is not None and step % chosen.every_steps == 0:
            return True
        if chosen.every_seconds is None:
            return False
        is_time = time.monotonic() - self._published_at >= chosen.every_seconds
        collective = self._container.collective
        if collective.world_size == 1:
            return is_time
        self._container.quiesce()
        return bool(collective.all_gather(np.array([is_time]))[0][0])


def _check_storage(container: StepContainer, manager: PluginManager) -> None:
    error: Exception | None = None
    for name in container.tables:
        tiers = container.tiers(name)
        if tiers and manager.storage(tiers[-1].backend).found is None:
            error = ConfigError(
                f"change_notes: rows of table {name!r} are in {tiers[-1].backend!r}, which servers "
                "cannot read, because it is in the memory of this process; choose a storage that servers "
                "can reach, such as redis, or a stack with such a storage as the last tier",
                setting="change_notes",
            )
            break
    Coordinator(container.collective, "change notes of this run").agree(error)
