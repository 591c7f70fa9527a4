"""The gate of a run: judges windows, withholds versions, and makes servers return to a good version.

window ──► `QualityGate` ──► closes: gate.json pins the last good version; nothing is published
                          │          with `on_close: return`, `RunReturns` then returns to the good step
                          └─► opens: the next version is published, and its publication removes the pin
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sparring import State
from sparring.errors import SparringError
from sparring_train.config.run import RunConfig
from sparring_train.data.stream.quarantine import Quarantine, read_quarantines
from sparring_train.live.gate import Closing, GateOptions, Opening, QualityGate
from sparring_train.live.windows import WindowResult
from sparring_train.run.ranks import Ranks

if TYPE_CHECKING:
    from sparring_train.live.publishing import RunPublisher

__all__ = ["RunGate"]

_STATE = "gate"
"""Name of the state that contains what the gate has learned."""


class RunGate:
    """Opens and closes as configured. All ranks create one and make the same calls; the first rank
    writes ``gate.json``.

    Args:
        config: configuration of the run.
        ranks: ranks of the run.
        publisher: publishes the versions of the run.
        tell: reports a one-line message to the user.

    Attributes:
        closing: the closing after which the run should return to an earlier step; equal on all ranks.
        is_repeating: whether the run makes steps again after a return, whose windows change nothing.
    """

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks,
        publisher: RunPublisher,
        tell: Callable[[str], None],
    ) -> None:
        self._ranks, self._publisher, self._tell = ranks, publisher, tell
        self._url = config.publish.url
        self._gate: QualityGate | None = None
        self._num_closings = self._num_returns = self._num_quarantined = 0
        self._returned_to: tuple[int, ...] = ()
        self.closing: Closing | None = None
        self.is_repeating = False
        # Number of windows of the gate at which the file is opened, which had closed later than the
        # snapshot from which the run was resumed.
        self._open_at: int | None = None
        self._unwritten: Closing | Opening | None = None  # only on the first rank
        chosen, seconds = config.publish.gate, config.metrics.window_seconds
        if chosen is None or self._url is None or seconds is None:
            return
        self._open_after = chosen.open_after_windows
        self._may_return = chosen.on_close == "return"
        self._max_returns = chosen.max_returns
        self._snapshots_url = config.snapshots.url
        options = chosen.model_dump(exclude={"on_close", "max_returns"})
        self._gate = QualityGate(GateOptions(seconds, **options))
        publisher.withhold = lambda: self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether versions are withheld."""
        return self._gate is not None and (self._gate.is_closed or self._open_at is not None)

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """Steps to which the run may return."""
        if self._gate is None or not self._may_return:
            return ()
        closing = () if self.closing is None else (self.closing.good_step or 0,)
        return (*closing, *self._gate.kept_steps)

    def on_window(self, window: WindowResult) -> None:
        """Judges a window. All ranks call it with equal windows."""
        gate = self._gate
        if gate is None or self.closing is not None:
            return
        if self._unwritten is not None:
            self._write(self._unwritten)
        if self.is_closed and self._is_opened_by_operator():
            gate.reopen()
            self._open_at = None
            self._tell(
                "the gate was opened by sparring publish --unpin; it learns anew what is normal"
            )
        was_closed = gate.is_closed
        change = gate.add(window)
        self._keep_versions(gate)
        if self.is_repeating:
            return
        if change is None and self._open_at is not None and gate.num_windows >= self._open_at:
            change = Opening("windows that were good this time, after the run was resumed")
        if change is None:
            return
        self._open_at = None
        if isinstance(change, Closing):
            self._num_closings += not was_closed
            if self._may_return and change.good_step is not None:
                if gate.num_returns < self._max_returns:
                    self.closing = change
                else:
                    self._tell(
                        f"the run has returned {gate.num_returns} times and the gate did not open "
                        "(publish.gate.max_returns), so training continues with these events, and "
                        f"versions are withheld; if the data have changed for good, run: sparring "
                        f"publish --output {self._url} --unpin"
                    )
        self._write(change)

    def _keep_versions(self, gate: QualityGate) -> None:
        self._publisher.keep_steps = (*self._returned_to, *gate.kept_steps)

    def withhold_only(self) -> None:
        """Continues without a return, which is not possible."""
        self.closing = None

    def returned(self, quarantine: Quarantine) -> None:
        """Continues with the model of the good step. The gate opens after good windows."""
        self.closing, self.is_repeating, self._open_at = None, False, None
        if self._gate is None:
            return
        self._gate.returned(quarantine.step)
        self._num_returns += 1
        self._num_quarantined += quarantine.num_events
        self._returned_to = (quarantine.good_step,)
        self._keep_versions(self._gate)

    def _write(self, change: Closing | Opening) -> None:
        """Writes the change and reports it, on the first rank. After a failure, the next window tries
        again."""
        if not self._ranks.is_first:
            return
        from sparring_serve import close_gate, open_gate

        is_repeated, self._unwritten = change is self._unwritten, change
        assert self._url is not None
        try:
            if isinstance(change, Opening):
                open_gate(self._url, change.reason)
                message = f"the gate opens after {change.reason}"
            else:
                bad = [range(each.good_step + 1, each.step) for each in self._quarantines()]
                pin = close_gate(self._url, change.reason, change.good_step, bad).pin
                self._publisher.notify()
                served = (
                    f"servers return to {pin}"
                    if pin
                    else "there is no earlier version to return to"
                )
                message = f"the gate closes: {change.reason}; {served}, and versions are withheld"
        except SparringError as error:
            if not is_repeated:
                self._tell(
                    f"writing the state of the gate failed: {error}; training continues, and each "
                    "window tries again"
                )
            return
        self._unwritten = None
        self._tell(message)

    def _quarantines(self) -> list[Quarantine]:
        may_return = self._may_return and self._snapshots_url is not None
        return read_quarantines(self._snapshots_url or "") if may_return else []

    def _is_opened_by_operator(self) -> bool:
        """Returns whether the file is open although this gate is closed; equal on all ranks."""
        return self._is_file(is_closed=False)

    def _is_file(self, *, is_closed: bool) -> bool:
        """Returns whether the file is written, and is in this state; equal on all ranks."""
        is_so = False
        if self._ranks.is_first and self._unwritten is None:
            import sparring_packed

            assert self._url is not None
            try:
                is_so = sparring_packed.read_gate(self._url).is_closed == is_closed
            except SparringError as error:
                self._tell(f"reading the state of the gate failed: {error}")
        return bool(self._ranks.largest(int(is_so)))

    def states(self) -> dict[str, State]:
        """Returns what the gate has learned, for a snapshot."""
        return {} if self._gate is None else {_STATE: State(self._gate.values())}

    def restore(self, states: Mapping[str, State]) -> None:
        """Continues with the gate of a snapshot, if it has one."""
        if self._gate is not None and _STATE in states:
            self._gate.restore(states[_STATE].values)
            self.closing = self._open_at = None
            if not self._gate.is_closed and self._is_file(is_closed=True):
                self._open_at = self._gate.num_windows + self._open_after
            self._keep_versions(self._gate)

    def metrics(self) -> dict[str, Any]:
        """Returns the section ``gate`` of the metrics, as JSON values."""
        if self._gate is None:
            return {}
        return {
            "gate": {
                "is_closed": self._gate.is_closed,
                "log_evidence": self._gate.log_evidence,
                "num_closings": self._num_closings,
                "num_returns": self._num_returns,
                "num_quarantined_events": self._num_quarantined,
            }
        }
