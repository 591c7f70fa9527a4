"""Background writes to the last tier.

    write buffer ──depart──► being written, on a thread of the background ──land──► last tier
       ▲                                  │
       └────────────put_back──────────────┘ failed

One write is outstanding at a time: it waits for a thread, or runs. Rows that come while it runs are
written after it. Until it has begun, a caller that must wait for it takes it back instead.
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
    """Writes buffered rows to a last tier that allows concurrent readers, and evicts nothing.

    Any thread may wait; one thread, the one that writes to the stack, begins.

    Args:
        table: the name of the table, for messages.
        tier: the last one.
        deadline_seconds: how long `wait` waits.
        failure: makes the error to raise of one that the tier raised.
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
        """Whether there is a background to write on."""
        return self._background is not None

    def use(self, background: Background) -> None:
        """Writes there from now on."""
        self._background = background

    def begin(self) -> bool:
        """Begins to write waiting rows in the background. Never waits.

        Returns:
            Whether they will be written; otherwise the caller has to write them.
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
                    # The background has no room. The next write asks again; without room in the
                    # write buffer either, it writes by itself.
                    return True
            return True

    def wait(self, is_enough: Callable[[], bool] | None = None) -> None:
        """Returns when nothing is being written, or `is_enough` says so. Rows may wait in the write
        buffer again.

        Raises:
            DeadlineError: a write has not ended in time. It goes on.
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
        """The stack is given up while a write goes on: `call` is called once it has ended."""
        with self._changed:
            if self._task is not None:
                self._when_ended = call
                return
        call()

    def _wait_briefly(self, task: Task[Any], seconds: float) -> None:
        if task.cancel():
            self._task = None  # it had not begun
        elif seconds <= 0:
            num_buffered_rows = self._tier.write_buffer.num_rows
            raise DeadlineError(
                f"table {self._table!r}: a write to tier {self._tier.backend!r} has not ended "
                f"within {self.deadline_seconds} s, and this call, which changed nothing, has to "
                f"wait for it; {num_buffered_rows} rows wait in memory and are found there. Mend that "
                "tier, or raise deadline_seconds; the rows go down when it goes on",
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
        """Submits another write for rows that came meanwhile; writes them on this thread where the
        background takes no more work, as when it is drained."""
        if not self._tier.write_buffer.has_waiting:
            self._finish()
            return False
        if self._when_ended is not None:
            return True  # the stack was given up: waiting rows go down before the tier is closed
        self._changed.notify_all()  # callers that wait for room
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
