"""Makes events bad again and again, and measures how long two servers serve a bad version.

    python live_poison.py configs/live.yaml 10 900   # ten of each kind, after 15 minutes of good events

The processes are those of `live_demo.py`. The program ends with 1 if the servers served the last good
version later than 10 seconds after the first bad event was sent, or if the gate closed without one.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from live_demo import Demo, Repeated
from live_events import BAD_EVENTS, EMPTIED, INVERTED, SCRAMBLED, poison
from live_page import MAX_RETURN_SECONDS

from sparring_train.data.stream.cut_log import read_cuts

WARM_UP_SECONDS, PAUSE_SECONDS, LONGEST = 30.0, 10.0, 20.0
RECOVERY_SECONDS = 120.0


class Poisoning:
    """Bad events in a running demo.

    Args:
        demo: the demo.
        run: folder of the snapshots of its trainer.
    """

    def __init__(self, demo: Demo, run: Path) -> None:
        self._demo, self._run = demo, run
        self.failures: list[str] = []
        self.seconds: dict[str, list[float]] = {}
        """Kind of bad events → seconds from the first one until both servers had returned."""

    @property
    def _is_closed(self) -> bool:
        gate = self._demo.recording.gate
        return bool(gate) and gate[-1].is_closed

    @property
    def _pinned_step(self) -> int:
        """Step of the pinned version; -1 if there is none."""
        pin = self._demo.recording.gate[-1].pin
        return int(pin.split("-")[1]) if pin else -1

    def stay_good(self, seconds: float) -> None:
        """Waits while events are good, and reports a gate that closes."""
        demo = self._demo
        if demo.wait(demo.seconds + seconds, lambda: self._is_closed):
            self.failures.append(f"closed without bad events: {demo.recording.gate[-1].reason}")
            demo.wait(demo.seconds + RECOVERY_SECONDS, lambda: not self._is_closed)

    def poison(self, kind: str) -> None:
        """Sends bad events until both servers have returned, and good ones until the gate is open."""
        demo = self._demo
        begin = time.time() + 0.5
        poison(demo.redis, kind, begin, begin + LONGEST)
        has_returned = demo.wait(demo.seconds + LONGEST, self._have_returned)
        seconds = time.time() - begin
        demo.redis.delete(BAD_EVENTS)
        self.seconds.setdefault(kind, []).append(seconds)
        demo.mark(f"{kind}: both servers returned after {seconds:.1f} s")
        step = self._pinned_step
        times = [each.event_time or 0 for each in read_cuts(str(self._run)) if each.step <= step]
        if not has_returned or seconds > MAX_RETURN_SECONDS:
            self.failures.append(f"{kind}: returned after {seconds:.1f} s")
        elif max(times) >= begin:
            self.failures.append(f"{kind}: the version of step {step} contains bad events")
        if not demo.wait(demo.seconds + RECOVERY_SECONDS, lambda: not self._is_closed):
            self.failures.append(f"{kind}: closed after {RECOVERY_SECONDS:g} s of good events")

    def _have_returned(self) -> bool:
        """Returns whether both servers reply with the pinned version."""
        latest = [each[-1].step for each in self._demo.recording.servers]
        return self._is_closed and latest == [self._pinned_step] * 2


def main(config: str, count: str, clean_seconds: str = "0") -> int:
    """Runs the trials; returns 1 if one failed."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        demo = Demo(Path(folder), Path(config).resolve(), running)
        poisoning = Poisoning(demo, Path(folder, "run"))
        watches = (demo.watch_gate, demo.watch_server(0), demo.watch_server(1))
        threads = [Repeated(each) for each in watches]
        poisoning.stay_good(WARM_UP_SECONDS + float(clean_seconds))
        for kind in (INVERTED, SCRAMBLED, EMPTIED) * int(count):
            poisoning.poison(kind)
            poisoning.stay_good(PAUSE_SECONDS)
        for each in threads:
            each.stop()
    for kind, seconds in poisoning.seconds.items():
        print(f"{kind}: {len(seconds)} times, at most {max(seconds):.1f} s until servers returned")
    print(f"{clean_seconds} s of good events; failures: {len(poisoning.failures)}")
    for each in poisoning.failures:
        print(f"FAILED  {each}")
    return 1 if poisoning.failures else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
