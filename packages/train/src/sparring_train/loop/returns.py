"""`RunReturns`: returns to the last good snapshot when the gate of a run closes, and drops later steps.

    gate closes ──► batches end ──► quarantine is written ──► newest snapshot before the bad windows
    ──► recorded steps up to the good step, again ──► skip the dropped events ──► snapshot, next events

The part after the quarantine is written is the same as in a run that is resumed, so a run that was killed
continues with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sparring.errors import DataError, SnapshotNotFoundError, SparringError
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.stream.cut_log import CutLog, join_ranges, read_cuts
from sparring_train.data.stream.dataset import StreamDataset
from sparring_train.data.stream.quarantine import (
    Quarantine,
    is_dropped,
    read_quarantines,
    write_quarantine,
)
from sparring_train.live.gate import Closing
from sparring_train.live.run_gate import RunGate
from sparring_train.loop.column_source import ColumnSource
from sparring_train.loop.position import POSITION, Position, read_position
from sparring_train.run.ranks import Ranks
from sparring_train.run.snapshot_folder import list_good_snapshots

__all__ = ["RunReturns"]


class RunReturns:
    """Decides where a run on a stream leaves out steps. All ranks create one and make the same calls.

    Args:
        config: configuration of the run.
        source: data of the run.
        ranks: ranks of the run.
        gate: gate of the run.
        cuts: log of the run's cuts.
        tell: reports a one-line message to the user.

    Attributes:
        is_replay: whether the steps belong to another run.
    """

    def __init__(
        self,
        config: RunConfig,
        source: ColumnSource,
        ranks: Ranks,
        gate: RunGate,
        cuts: CutLog,
        tell: Callable[[str], None],
    ) -> None:
        self._url, self._source, self._ranks = config.snapshots.url, source, ranks
        self._gate, self._cuts, self._tell = gate, cuts, tell
        self.is_replay = isinstance(config.data, StreamData) and config.data.cuts_from is not None

    @property
    def _stream(self) -> StreamDataset | None:
        data = self._source.data
        return data if isinstance(data, StreamDataset) else None

    @property
    def is_wanted(self) -> bool:
        """Whether the gate has closed, and the run should return; equal on all ranks."""
        return self._gate.closing is not None

    def is_repeated(self, step: int) -> bool:
        """Returns whether the step after `step` is made again, because the run returned."""
        stream = self._stream
        return stream is not None and stream.is_repeated(step)

    def begin(self, step: int) -> None:
        """Prepares the steps after a snapshot of `step` was loaded."""
        self._gate.is_repeating = self.is_repeated(step)

    def record(self, last_step: int) -> bool:
        """Writes the quarantine of the steps up to `last_step`, and returns whether the run can return.

        If it cannot, it reports the reason, and the run continues with a closed gate.
        """
        closing = self._gate.closing
        assert closing is not None
        is_written = False
        if self._ranks.is_first:
            try:
                self._write(closing, last_step)
                is_written = True
            except (OSError, SparringError) as error:
                self._tell(
                    f"returning to a step before the bad windows is not possible: {error}; versions are "
                    "withheld, and training continues"
                )
        if self._ranks.largest(int(is_written)):
            return True
        self._gate.withhold_only()
        return False

    def _write(self, closing: Closing, last_step: int) -> None:
        """Writes the quarantine, once it is certain that the run can return.

        Raises:
            DataError: cuts or events are missing.
            SnapshotError: there is no snapshot to return to.
            OSError: a file cannot be written.
        """
        url, good_step, stream = self._url, closing.good_step, self._stream
        assert url is not None
        assert good_step is not None
        assert stream is not None
        if good_step >= last_step:
            raise DataError(
                f"the windows before the bad ones ended in step {good_step:,}, which also contains bad "
                "events; set a longer metrics.window_seconds or a smaller data.batch_size"
            )
        self._cuts.flush()
        snapshots = [each for each in list_good_snapshots(url) if each.step <= good_step]
        if not snapshots:
            raise SnapshotNotFoundError(
                f"{url} contains no snapshot of step {good_step:,} or earlier; set "
                "snapshots.every_steps or snapshots.every_minutes",
                url=url,
            )
        start = snapshots[-1]
        dropped = read_quarantines(url)
        returns = [each.step for each in dropped]
        needed = [
            step
            for step in range(start.step + 1, last_step + 1)
            if step not in returns and not is_dropped(step, dropped)
        ]
        cuts = read_cuts(url, [(start.step + 1, last_step + 1)])
        if not self._cuts.is_written or [each.step for each in cuts] != needed:
            raise DataError(
                f"{url} does not contain the cuts of all steps after {start.step:,}; check its folder "
                "cuts",
                path=url,
            )
        position = read_position(start.url, start.state(POSITION).values)
        stream.check_exist(position.stream or {})
        ranges = join_ranges(each for cut in cuts if cut.step > good_step for each in cut.ranges)
        write_quarantine(
            url,
            Quarantine(good_step, last_step, closing.reason, closing.begin, time.time(), ranges),
        )

    def skip(self, at: Position) -> Position | None:
        """Leaves out the steps that follow a position, if the run has dropped them.

        Returns:
            The position after them. None if steps follow that were not dropped.
        """
        stream = self._stream
        found = None if stream is None else stream.find_quarantine(at.step)
        if stream is None or found is None or found.good_step != at.step:
            return None
        positions = stream.skip(found)
        self._gate.returned(found)
        self._tell(
            f"the run continues from its state after step {found.good_step:,}, as step {found.step:,}; "
            f"the {found.num_events:,} events of the steps {found.good_step + 1:,} to "
            f"{found.last_step:,} are quarantined"
        )
        self._gate.is_repeating = self.is_repeated(found.step)
        return Position(found.step, 0, 0, positions, at.event_time)
