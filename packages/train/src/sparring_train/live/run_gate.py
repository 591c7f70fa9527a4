"""The gate of a run: judges windows, withholds versions, and makes servers return to a good version.

window ──► `QualityGate` ──► closes: gate.json pins the last good version; nothing is published
                          └─► opens: the next version is published, and its publication removes the pin
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from sparring import State
from sparring.errors import SparringError
from sparring_train.config.run import RunConfig
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
        self._num_closings = 0
        self._unwritten: Closing | Opening | None = None  # only on the first rank
        chosen, seconds = config.publish.gate, config.metrics.window_seconds
        if chosen is None or self._url is None or seconds is None:
            return
        self._gate = QualityGate(GateOptions(seconds, **chosen.model_dump()))
        publisher.withhold = lambda: self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether versions are withheld."""
        return self._gate is not None and self._gate.is_closed

    def on_window(self, window: WindowResult) -> None:
        """Judges a window. All ranks call it with equal windows."""
        gate = self._gate
        if gate is None:
            return
        if self._unwritten is not None:
            self._write(self._unwritten)
        if gate.is_closed and self._is_opened_by_operator():
            gate.reopen()
            self._tell(
                "the gate was opened by sparring publish --unpin; it learns anew what is normal"
            )
        change = gate.add(window)
        self._publisher.keep_steps = gate.kept_steps
        if isinstance(change, Closing):
            self._num_closings += 1
            self._write(change)
        elif isinstance(change, Opening):
            self._write(change)

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
                pin = close_gate(self._url, change.reason, change.good_step).pin
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

    def _is_opened_by_operator(self) -> bool:
        """Returns whether the file is open although this gate is closed; equal on all ranks."""
        is_open = False
        if self._ranks.is_first and self._unwritten is None:
            import sparring_packed

            assert self._url is not None
            try:
                is_open = not sparring_packed.read_gate(self._url).is_closed
            except SparringError as error:
                self._tell(f"reading the state of the gate failed: {error}")
        return bool(self._ranks.largest(int(is_open)))

    def states(self) -> dict[str, State]:
        """Returns what the gate has learned, for a snapshot."""
        return {} if self._gate is None else {_STATE: State(self._gate.values())}

    def restore(self, states: Mapping[str, State]) -> None:
        """Continues with the gate of a snapshot, if it has one."""
        if self._gate is not None and _STATE in states:
            self._gate.restore(states[_STATE].values)
            self._publisher.keep_steps = self._gate.kept_steps

    def metrics(self) -> dict[str, Any]:
        """Returns the section ``gate`` of the metrics, as JSON values."""
        if self._gate is None:
            return {}
        return {
            "gate": {
                "is_closed": self._gate.is_closed,
                "log_evidence": self._gate.log_evidence,
                "num_closings": self._num_closings,
            }
        }
