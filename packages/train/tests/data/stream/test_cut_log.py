"""The log of cuts contains the cuts of the steps that a run has kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparring.errors import DataError
from sparring_train.columns import Cut, CutRange
from sparring_train.data.stream import cut_log
from sparring_train.data.stream.cut_log import CutLog, read_cuts


def write(url: str, steps: range, *, size: int) -> None:
    log = CutLog(url, 2, lambda message: None)
    for step in steps:
        ranges = tuple(CutRange(name, step, step + size, size) for name in ("a", "b"))
        log.add(step, Cut(ranges, {}))
    log.flush()
    log.flush()


def test_a_resumed_run_replaces_the_cuts_of_steps_that_it_makes_again(tmp_path: Path) -> None:
    write(str(tmp_path), range(1, 5), size=10)
    write(str(tmp_path), range(3, 6), size=20)
    found = read_cuts(str(tmp_path))
    assert [(cut.step, cut.ranges[1].num_events, cut.world_size) for cut in found] == [
        (1, 10, 2), (2, 10, 2), (3, 20, 2), (4, 20, 2), (5, 20, 2),
    ]  # fmt: skip
    assert len(list(tmp_path.glob("cuts/*.parquet"))) == 2


def test_cuts_that_cannot_be_written_are_written_later(tmp_path: Path) -> None:
    messages: list[str] = []
    log = CutLog(str(tmp_path / "run"), 1, messages.append)
    log.add(1, Cut((CutRange("a", 0, 5, 5),), {"a": 5}))
    (tmp_path / "run").write_text("not a folder")
    log.flush()
    assert "writing the cuts of the run" in messages[0]
    (tmp_path / "run").unlink()
    log.flush()
    assert [cut.step for cut in read_cuts(str(tmp_path / "run"))] == [1]


def test_cuts_do_not_wait_for_a_snapshot_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_log, "_MAX_WAITING_ROWS", 4)
    messages: list[str] = []
    log = CutLog(str(tmp_path / "run"), 1, messages.append)
    (tmp_path / "run").write_text("not a folder")
    for step in range(1, 8):
        log.add(step, Cut((CutRange("a", step, step + 1, 1),), {}))
    # It does not try again after each step.
    assert len(messages) == 1
    (tmp_path / "run").unlink()
    log.add(8, Cut((CutRange("a", 8, 9, 1),), {}))
    assert [cut.step for cut in read_cuts(str(tmp_path / "run"))] == [*range(1, 9)]


def test_many_small_files_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = str(tmp_path / "one"), str(tmp_path / "other")
    runs = [range(1, 6), range(6, 9), range(4, 7), range(7, 9), range(8, 11), range(11, 12)]
    for size, steps in enumerate(runs[:-1]):
        write(one, steps, size=size)
    shutil.copytree(one, other)
    write(other, runs[-1], size=5)
    separate = sorted((tmp_path / "other/cuts").iterdir())
    expected = read_cuts(other)
    monkeypatch.setattr(cut_log, "_MAX_SMALL_FILES", 6)
    write(one, runs[-1], size=5)
    folder = tmp_path / "one/cuts"
    [merged] = folder.iterdir()
    assert merged.name == f"{5:08d}-{1:012d}.parquet"
    assert read_cuts(one) == expected
    # The run was interrupted while it removed the files, of which the oldest is the first.
    for each in reversed(separate):
        shutil.copy(each, folder)
        assert read_cuts(one) == expected
    write(one, range(12, 13), size=5)
    assert [cut.step for cut in read_cuts(one)] == [*range(1, 13)]
    assert len(list(folder.iterdir())) == 1

    monkeypatch.setattr(cut_log, "_SMALL_BYTES", 1)
    for step in range(13, 20):
        write(one, range(step, step + 1), size=5)
    assert len(list(folder.iterdir())) == 8  # Large files are not written again.


_LONG_RUN = """
import sys
from pathlib import Path
from sparring_train.columns import Cut, CutRange
from sparring_train.data.stream.cut_log import CutLog

def memory_bytes():
    [line] = [each for each in Path("/proc/self/status").open() if each.startswith("RssAnon")]
    return int(line.split()[1]) << 10

log = CutLog(sys.argv[1], 3, print)
for save in range(64 * 10):
    if save == 64 * 4:
        before = memory_bytes()
    for step in range(save * 15, save * 15 + 15):
        log.add(step, Cut(tuple(CutRange(name, step, step + 1, 1) for name in "abc"), {}, 1.0))
    log.flush()
print(memory_bytes() - before)
"""


@pytest.mark.long
def test_the_memory_of_a_long_run_is_constant(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LONG_RUN, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ran.stdout) < 8 << 20  # Threads and large files would keep 14 MiB or more.


def test_a_damaged_log_is_reported(tmp_path: Path) -> None:
    write(str(tmp_path), range(1, 3), size=10)
    next(tmp_path.glob("cuts/*.parquet")).write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"reading the cuts of the run .*restore its folder cuts"):
        read_cuts(str(tmp_path))
