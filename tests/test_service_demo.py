"""The demo of a service that learns: real processes, a shard killed, and what its report says."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

for _name in ("sparring_serve", "sparring_packed.library", "sparring_train", "torch", "matplotlib"):
    pytest.importorskip(_name)

EXAMPLES = Path(__file__).resolve().parents[1] / "packages/serve/examples"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import service_demo

    return service_demo


@pytest.mark.alone
def test_a_shard_that_is_killed_loses_nothing_while_others_answer(
    demo: Any, tmp_path: Path
) -> None:
    seen = demo.watch_service(tmp_path, 1.0)
    trainers = {"PyTorch 1", "PyTorch 2"}
    if find_spec("tensorflow") is not None and find_spec("sparring_tf") is not None:
        trainers.add("TensorFlow")
    assert seen.steps.keys() == trainers
    killed, restarted = (seen.events[each].at for each in ("killed", "restarted"))
    for steps in seen.steps.values():
        assert steps[0].at < killed
        assert steps[-1].at > restarted
        # Each waited for the shard, and none failed.
        assert max(each.seconds for each in steps) > demo.SECONDS_OF_OUTAGE
    first, last = (step for _, step in seen.saved)
    # A step of the service is a push of one trainer; a shard counts those that it has. A trainer whose
    # push was lost would have ended with an error.
    assert first < seen.restarted_step <= last
    assert [step for _, step in seen.published] == [first, last]
    assert seen.num_compared == 500
    assert seen.lookup_errors == []
    has_redis = find_spec("sparring_redis") is not None and shutil.which("redis-server") is not None
    assert any(killed < each.at < restarted for each in seen.lookups) == has_redis
    has_compiler = shutil.which("c++") is not None
    assert {step for _, step in seen.reads} == ({first, last} if has_compiler else set())
    assert len(seen.left_out) == (3 - len(trainers)) + (not has_redis) + (not has_compiler)
    text = demo.write_report(tmp_path / "reports/service.html", seen)
    assert re.search(rf"rows of the last snapshot +{seen.num_rows:,}\n", text)


def test_the_report_tells_what_was_left_out_and_counts_what_went_wrong(
    demo: Any, tmp_path: Path
) -> None:
    seen = demo.Seen(steps={"PyTorch 1": [demo.Step(float(at), 0.1, 1.0 / at) for at in (1, 2, 4)]})
    for at, name in ((1.5, "saved"), (3.0, "killed"), (3.5, "restarted")):
        seen.events[name] = demo.Event(at, f"<{name}>")
    seen.saved, seen.published, seen.restarted_step = [(1.5, 2)], [(1.6, 2)], 3
    seen.left_out.append("TensorFlow trained nothing: tensorflow is not installed.")
    text = demo.write_report(tmp_path / "service.html", seen)
    facts = dict(re.findall(r"^(.*?) {2,}(.*)$", text, re.MULTILINE))
    assert facts["pushes of PyTorch 1"] == "3"
    assert facts["shard was away"] == "0.50 s"
    assert facts["pushes since the save that the shard replayed"] == "1"
    assert not any("lookup" in name or "C++" in name for name in facts)
    page = (tmp_path / "service.html").read_text()
    assert "tensorflow is not installed." in page
    assert "inference server" not in page
    assert "&lt;killed&gt;" in page

    seen.lookups += [demo.Lookup(2.0, 0.01, 0.5), demo.Lookup(3.2, 0.03, 0.5)]
    seen.lookup_errors.append((3.3, "no <replica>"))
    text = demo.write_report(tmp_path / "service.html", seen)
    facts = dict(re.findall(r"^(.*?) {2,}(.*)$", text, re.MULTILINE))
    assert facts["lookups that failed"] == "1"
    assert facts["lookups while the shard was away"] == "1"
    assert facts["their latency, median"] == "30.0 ms"
    assert "<li>no &lt;replica&gt;</li>" in (tmp_path / "service.html").read_text()
