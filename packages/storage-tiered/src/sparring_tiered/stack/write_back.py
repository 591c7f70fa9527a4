"""Background writes to the last tier.

    write buffer ──depart──► being written, on a thread of the background ──land──► last tier
       ▲                                  │
       └────────────put_back──────────────┘ failed

At most one write is queued or running. Rows that are added while it runs are written after it. A caller
that has to wait for a queued write cancels it instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparring.contracts import Background
from sparring.errors import ClosedError, DeadlineError, SparringError
from sparring_tiered.stack.tier import Tier

if TYPE_CHECKING:
    from sparring.adapter import Task

__all__ = ["WriteBack"]


class WriteBack:
    """Writes buffered rows in the background to a last tier that supports concurrent readers and does
    not evict.

    Any thread may call `wait`. Only the thread that writes to the stack may call `begin`.

    Args:
        table: Name of the table, for messages.
        tier: Last tier.
        deadline_seconds: Maximum time that `wait` waits.
        failure: Converts an error of the tier to the error to raise.
    """

    def __init__(
        self,
        table: str,
        tier: Tier,
        deadline_seconds: float,
        failure: Callable[[Exception], SparringError],
    ) -> None:
        self.deadline_seconds = deadline_seconds
        self._table = table
        self._tier = tier
        self._failure = failure
        self._background: Background | None = None
        self._task: Task[Any] | None = None
        self._when_ended: Callable[[], None] | None = None
        # Guards `_task`, `_when_ended`, and rows that depart and land.
        self._changed = threading.Condition()

    @property
    def is_on(self) -> bool:
        """Whether a background is available."""
        return self._background is not None

    def use(self, background: Background) -> None:
        """Uses `background` for writes from now on."""
        self._background = background

    def begin(self) -> bool:
        """Begins to write waiting rows in the background, without waiting.

        Returns:
            Whether they will be written. Otherwise the caller has to write them.
        """
        with self._changed:
            if self._background is None:
                return False
            if self._task is None and self._tier.write_buffer.has_waiting:
                try:
                    self._task = self._submit(self._background)
                except ClosedError:
                    self._background = None
                    return False
                except DeadlineError:
                    # The queue of the background is full. The next write tries again; if the write
                    # buffer is full too, it writes the rows itself.
                    return True
            return True

    def wait(self, is_enough: Callable[[], bool] | None = None) -> None:
        """Waits until no write is in progress, or `is_enough` returns True.

        It may cancel a queued write, whose rows then wait in the write buffer again.

        Raises:
            DeadlineError: A write did not end before the deadline. It continues.
        """
        with self._changed:
            if self._task is None:
                return
            start = time.perf_counter()
            try:
                while self._task is not None and not (is_enough and is_enough()):
                    left = start + self.deadline_seconds - time.perf_counter()
                    self._wait_briefly(self._task, left)
            finally:
                self._tier.meter.waited(time.perf_counter() - start)

    def call_when_ended(self, call: Callable[[], None]) -> None:
        """Calls `call` when no write is in progress, possibly at once. Closing the stack uses
        it."""
        with self._changed:
            if self._task is not None:
                self._when_ended = call
                return
        call()

    def _wait_briefly(self, task: Task[Any], seconds: float) -> None:
        if task.cancel():
            self._task = None  # it was only queued
        elif seconds <= 0:
            num_buffered_rows = self._tier.write_buffer.num_rows
            raise DeadlineError(
                f"table {self._table!r}: a write to tier {self._tier.backend!r}, for which this call has "
                f"to wait, did not end within {self.deadline_seconds} s. This call changed nothing; "
                f"{num_buffered_rows} rows are buffered in memory, and finds return them. Repair that "
                "tier, or raise deadline_seconds; the rows are written when the tier responds",
                table=self._table,
                backend=self._tier.backend,
                num_buffered_rows=num_buffered_rows,
                timeout=self.deadline_seconds,
            )
        else:
            self._changed.wait(seconds)

    def _submit(self, background: Background) -> Task[Any]:
        name = f"write-back of table {self._table!r} to {self._tier.backend}"
        return background.submit(self._write, name=name, timeout=0.0)

    # -- on a thread of the background ------------------------------------------

    def _write(self) -> None:
        goes_on = True
        while goes_on:
            departed = self._tier.write_buffer.depart()
            try:
                if departed is not None:
                    self._tier.receive(departed)
            except Exception as error:
                failure = self._failure(error)
                with self._changed:
                    self._tier.write_buffer.put_back()
                    self._finish()
                raise failure from error
            with self._changed:
                self._tier.write_buffer.land()
                goes_on = self._is_running()

    def _is_running(self) -> bool:
        """Whether this thread has to write rows that were added during the write.

        Normally it submits another write for them and returns False. If the background accepts no
        more work, for example while it is drained, it returns True, and this thread writes them.
        """
        if not self._tier.write_buffer.has_waiting:
            self._finish()
            return False
        if self._when_ended is not None:
            return True  # the stack is being closed: waiting rows are written before the tier is closed
        self._changed.notify_all()  # callers that wait for buffer capacity
        assert self._background is not None
        try:
            self._task = self._submit(self._background)
        except (ClosedError, DeadlineError):
            return True
        return False

    def _finish(self) -> None:
        self._task = None
        self._changed.notify_all()
        if self._when_ended is not None:
            call, self._when_ended = self._when_ended, None
            call()
