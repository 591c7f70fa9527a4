"""A publisher writes a full version if the version below a delta is lost or damaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import xxhash

from sparring import Snapshot
from sparring_serve.publishing import base_check
from sparring_serve.publishing.evaluation import EvaluationCheck, MetricLossError
from sparring_serve.publishing.publisher import PublisherOptions, find_merge, publish_newest
from sparring_serve.publishing.version_list import list_versions
from sparring_testing.faults.damaged_file import flip_byte

from .test_publish_and_serve import KEYS, Run

sparring_packed = pytest.importorskip("sparring_packed")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    made.save_and_publish()
    made.save_and_publish(KEYS[:9], is_delta=True)
    yield made
    made.container.close()


def file_of(run: Run, name: str, kind: str) -> Path:
    [path] = (Path(run.out) / name).glob(kind)
    return path


DAMAGE: dict[str, Callable[[Run], None]] = {
    "full version lost": lambda run: shutil.rmtree(f"{run.out}/step-001"),
    "manifest of the full version": lambda run: flip_byte(
        file_of(run, "step-001", "manifest.json"), -9
    ),
    "file of the full version lost": lambda run: file_of(run, "step-001", "rows.user*").unlink(),
    "bit of the full version": lambda run: flip_byte(file_of(run, "step-001", "rows.item*"), -1),
    "bit of the delta": lambda run: flip_byte(file_of(run, "step-002", "rows.item*"), -1),
    "filter of the delta": lambda run: flip_byte(file_of(run, "step-002", "changed.item*"), -1),
    "delta truncated": lambda run: os.truncate(file_of(run, "step-002", "rows.item*"), 100),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_full_version_follows_a_damaged_base(
    run: Run, damage: Callable[[Run], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(run)
    find_merge(run.out, PublisherOptions({}, full_every=1))
    published = run.save_and_publish(KEYS[:9], is_delta=True)
    assert not published.is_delta
    [told] = [each for each in caplog.messages if "a full version is written" in each]
    assert "version step-002 is not intact" in told
    assert "\n" not in told
    with sparring_packed.open(run.out) as tables:
        assert tables.version.step == 3
        caplog.clear()
        assert run.save_and_publish(KEYS[:9], is_delta=True).is_delta
        assert tables.refresh()
        assert tables.lookup("item", KEYS[[0, 400]])[:, 0].tolist() == [4, 1]
    assert "a full version" not in caplog.text


@pytest.mark.parametrize("lost", ["step-001", "step-002/rows.item.0000-4096.packed"])
def test_an_unusable_version_is_published_again(
    run: Run, lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(run.out) / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    published = run.publish()
    assert published.written.url.endswith("step-002-002")
    assert not published.is_delta
    assert "version step-002 is not intact" in caplog.text
    assert run.publish() is None


def test_a_name_with_a_damaged_manifest_is_not_used_again(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    flip_byte(file_of(run, "step-002", "manifest.json"), -9)
    published = run.publish()
    assert published.written.url.endswith("step-002-002")
    list_versions(run.out)
    assert len([each for each in caplog.messages if "step-002 is ignored" in each]) == 1
    with sparring_packed.open(run.out) as tables:
        assert tables.version.step == 2


def test_a_publisher_reads_each_file_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_check, "_SAME_TIME_SECONDS", -1.0)
    hashed: list[int] = []

    def count() -> xxhash.xxh3_128:
        hashed.append(1)
        return xxhash.xxh3_128()

    monkeypatch.setattr(base_check, "xxhash", SimpleNamespace(xxh3_128=count))
    numbers = []
    for _ in range(3):
        hashed.clear()
        run.save_and_publish(KEYS[:2], is_delta=True)
        numbers.append(len(hashed))
    # All files of the chain first, and then those of the newest delta.
    own = len(list((Path(run.out) / "step-003").glob("*"))) - 1
    assert numbers[0] > numbers[1] == numbers[2] == own


class Refusing:
    """Refuses each model."""

    def check(self, snapshot: Snapshot, *_: Any) -> None:
        raise MetricLossError("worse", url=snapshot.url)


def test_damage_below_a_refused_model_is_found_once_and_not_reported(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = file_of(run, "step-002", "rows.item*")
    content = path.read_bytes()
    flip_byte(path, -1)
    run.save(KEYS[:9], is_delta=True)
    hashed: list[int] = []
    options, refusing = PublisherOptions({}, full_every=16), cast("EvaluationCheck", Refusing())
    for _ in range(3):
        with pytest.raises(MetricLossError):
            publish_newest(run.url, run.out, options, refusing)
        monkeypatch.setattr(base_check, "_hash", lambda *_: hashed.append(1))
    assert not caplog.messages
    assert not hashed
    monkeypatch.undo()
    path.unlink()
    path.write_bytes(content)
    assert run.publish().is_delta


def test_a_refused_model_is_not_reported_as_published_again(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    file_of(run, "step-002", "rows.item*").unlink()
    with pytest.raises(MetricLossError):
        publish_newest(run.url, run.out, PublisherOptions({}), cast("EvaluationCheck", Refusing()))
    assert not caplog.messages
