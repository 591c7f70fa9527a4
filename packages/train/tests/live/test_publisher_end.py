"""The end of a run that publishes: ranks wait for the last version, and no process remains."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.collective.local import LocalGroup
from sparring_train.config.sections.publish import PublishConfig
from sparring_train.live import publisher_process, publishing
from sparring_train.live.publisher_process import PublisherThread, SavedStep


class Slow:
    """A publication that takes half a second."""

    is_free = True

    def __init__(self, *_: Any) -> None:
        self.submitted: list[SavedStep] = []
        self._end = time.monotonic()

    def submit(self, saved: SavedStep) -> None:
        self.submitted.append(saved)
        self._end = time.monotonic() + 0.5

    def join(self, timeout: float) -> bool:
        time.sleep(max(0.0, min(timeout, self._end - time.monotonic())))
        return time.monotonic() >= self._end


@pytest.mark.parametrize(("seconds", "told"), [(60.0, 0), (0.1, 1)])
def test_ranks_wait_longer_than_one_exchange(
    monkeypatch: pytest.MonkeyPatch, seconds: float, told: int
) -> None:
    monkeypatch.setattr(publishing, "_open_thread", Slow)
    config: Any = SimpleNamespace(
        publish=PublishConfig(url="served"),
        snapshots=SimpleNamespace(deadline_seconds=seconds),
        deadline_seconds=0.2,
    )
    snapshots: Any = SimpleNamespace(running=None, last_url="runs/step-1")
    group, messages, errors = LocalGroup(2, deadline_seconds=0.2), list[str](), list[Exception]()
    publishers = {}

    def end(rank: int) -> None:
        container: Any = SimpleNamespace(collective=group.join(rank), quiesce=lambda: None)
        try:
            publishers[rank] = publishing.RunPublisher(
                container, config, snapshots, messages.append
            )
            publishers[rank].end()
        except Exception as error:  # The test checks it.
            errors.append(error)

    threads = [threading.Thread(target=end, args=(rank,)) for rank in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert errors == []
    assert len(messages) == told
    [saved] = publishers[0]._thread.submitted
    assert saved.url == "runs/step-1"


@pytest.mark.parametrize(("newest", "expected"), [("step-1", [""]), ("step-1-2", ["", "step-1-2"])])
def test_the_end_publishes_only_another_snapshot(
    monkeypatch: pytest.MonkeyPatch, newest: str, expected: list[str]
) -> None:
    """A run that returns to its best step saves its last step a second time."""
    monkeypatch.setattr(publishing, "_open_thread", Slow)
    config: Any = SimpleNamespace(
        publish=PublishConfig(url="served"),
        snapshots=SimpleNamespace(deadline_seconds=60.0),
        deadline_seconds=60.0,
    )
    snapshots: Any = SimpleNamespace(
        running=SimpleNamespace(done=lambda: True), last_url=None, save=lambda *_, **__: "step-1"
    )
    container: Any = SimpleNamespace(collective=LocalGroup(1).join(0), quiesce=lambda: None)
    publisher: Any = publishing.RunPublisher(container, config, snapshots, print)
    publisher.after_step(1, None, dict)
    snapshots.running, snapshots.last_url = None, newest
    publisher.end()
    assert [each.url for each in publisher._thread.submitted] == expected


def test_no_process_is_started_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hanging(subprocess.Popen):  # type: ignore[type-arg]
        started: list[Hanging] = []  # noqa: RUF012

        def __init__(self, *_: Any, **options: Any) -> None:
            code = "import time; time.sleep(60)"
            super().__init__([sys.executable, "-c", code], **options)
            self.started.append(self)

    monkeypatch.setattr(publisher_process.subprocess, "Popen", Hanging)
    monkeypatch.setattr(publisher_process, "_EXIT_SECONDS", 0.1)
    told: list[str] = []
    thread = PublisherThread(PublishConfig(url="served"), told.append)
    for step in (1, 2):
        thread.submit(SavedStep(f"runs/step-{step}", None, None))
        while step == 1 and not thread.is_free:
            time.sleep(0.01)
    thread.close()
    thread._thread.join(10)
    assert not thread._thread.is_alive()
    assert [each.poll() for each in Hanging.started] == [-9]
    assert told == []


_ANSWERING = """
import sys
sys.stdin.readline()  # settings
for order in sys.stdin:
    if not {is_answering}:
        break
    with open({path!r}, "a") as file:
        file.write(order)
    print('{{"result": "unchanged"}}', flush=True)
"""


@pytest.mark.parametrize("num_ends", [1, 2])
def test_a_publication_is_repeated_if_its_process_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, num_ends: int
) -> None:
    orders = tmp_path / "orders"

    class Ending(subprocess.Popen):  # type: ignore[type-arg]
        count = 0

        def __init__(self, *_: Any, **options: Any) -> None:
            Ending.count += 1
            is_answering = Ending.count > num_ends
            code = _ANSWERING.format(is_answering=is_answering, path=str(orders))
            super().__init__([sys.executable, "-c", code], **options)

    monkeypatch.setattr(publisher_process.subprocess, "Popen", Ending)
    told: list[str] = []
    thread = PublisherThread(PublishConfig(url="served"), told.append)
    thread.submit(SavedStep("runs/step-1", None, None))
    assert thread.join(60)
    thread.close()
    assert Ending.count == 2
    found = {name: count for name, count in thread.counters.publications.items() if count}
    assert found == {"unchanged" if num_ends == 1 else "failed": 1}
    assert ["has ended twice" in each for each in told] == [True] * (num_ends - 1)
    if num_ends == 1:
        # The first process may have published the version, and ended before it notified servers.
        answered = [json.loads(each)["snapshot"] for each in orders.read_text().splitlines()]
        assert answered == ["runs/step-1", ""]
