"""Effects of the keys of the section `publish`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparring.collective.local import LocalGroup
from sparring.errors import ConfigError
from sparring_train.config.sections.gate import GateConfig
from sparring_train.live import publisher_process
from sparring_train.live.gate import GateOptions, QualityGate
from sparring_train.live.publishing import RunPublisher
from sparring_train.live.run_gate import RunGate
from sparring_train.run.ranks import Ranks

pytest.importorskip("sparring_torch", reason="needs sparring-torch")

from ..live.test_gate import Model
from .config_runs import Runs, shows


@shows(
    "publish.gate.false_alarms_per_day", "publish.gate.min_events",
    "publish.gate.warm_up_windows", "publish.gate.open_after_windows",
)  # fmt: skip
def test_effects_of_the_thresholds_of_the_gate() -> None:
    def changes(**options: Any) -> list[int]:
        model = Model(seed=4, num_events=3000)
        gate = QualityGate(
            GateOptions(10, **GateConfig(**options).model_dump(exclude={"on_close", "max_returns"}))
        )
        kinds = ["clean"] * 30 + ["inverted"] * 2 + ["clean"] * 8
        return [number for number, kind in enumerate(kinds) if gate.add(model.window(kind))]

    assert changes() == [30, 34]
    assert changes(open_after_windows=1) == [30, 32]
    assert changes(warm_up_windows=40) == []
    assert changes(false_alarms_per_day=1e-9)[0] == 31
    assert changes(min_events=7000) != [30, 34]


@shows("publish.gate.on_close", "publish.gate.max_returns")
def test_effects_of_gate_on_close_and_max_returns(runs: Runs) -> None:
    pytest.importorskip("sparring_serve", reason="writes the gate")
    for on_close, returns in (("withhold", False), ("return", True)):
        config: Any = SimpleNamespace(
            publish=SimpleNamespace(url=f"gate-{on_close}", gate=GateConfig(on_close=on_close)),
            metrics=SimpleNamespace(window_seconds=10.0),
            snapshots=SimpleNamespace(url="run"),
        )
        publisher: Any = SimpleNamespace(keep_steps=(), notify=lambda: None)
        gate = RunGate(config, Ranks(LocalGroup(1).join(0)), publisher, lambda _: None)
        model = Model(seed=4, num_events=3000)
        for kind in ["clean"] * 30 + ["inverted"]:
            gate.on_window(model.window(kind))
        assert gate.is_closed
        assert (gate.closing is not None) == returns
    with pytest.raises(
        ConfigError, match=r"gate\.max_returns.*found publish\.gate\.on_close: with"
    ):
        runs.ratings("snapshots.url=a", "publish.url=b", "publish.gate={max_returns: 2}")


class _Publisher:
    """Takes the place of the process that publishes, and records what it is told."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.told: list[Any] = []
        self.stdin = self.stdout = self

    def write(self, line: str) -> None:
        self.told.append(json.loads(line))

    def readline(self) -> str:
        seconds = {"convert_seconds": 0.0, "notify_seconds": 0.0, "url": "served", "reason": ""}
        return json.dumps(
            {"result": "published", "not_notified": {"a:1": "UNAVAILABLE"}, **seconds}
        )

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def wait(self, *_: Any) -> int:
        return 0


def _told(runs: Runs, name: str, *given: str) -> tuple[Any, Any]:
    """Trains with a publisher; returns the run, and what the publisher was told."""
    pytest.importorskip("sparring_serve", reason="publishes")
    made: list[_Publisher] = []

    def start(*_: Any, **__: Any) -> _Publisher:
        made.append(_Publisher())
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publisher_process.subprocess, "Popen", start)
        # No version is skipped: a save waits for the previous one, and an order for the previous order.
        patch.setattr(RunPublisher, "_is_free", True)
        submit = publisher_process.PublisherThread.submit
        patch.setattr(
            publisher_process.PublisherThread,
            "submit",
            lambda self, saved: submit(self, saved) if self.join(10) else None,
        )
        ran = runs.ratings(f"snapshots.url=run-{name}", f"publish.url=served-{name}", *given)
    [publisher] = made
    return ran, publisher.told


@shows("publish.url", "publish.every_seconds")
def test_effects_of_publish_url_and_every_seconds(runs: Runs) -> None:
    _, [settings, *orders] = _told(runs, "seldom", "publish.every_seconds=3600")
    assert settings["output"] == "served-seldom"
    assert [Path(each["snapshot"]).name[-1] for each in orders] == ["1", "4"]
    _, [_, *orders] = _told(runs, "often", "publish.every_seconds=1e-9")
    assert [Path(each["snapshot"]).name[-1] for each in orders] == ["1", "2", "3", "4"]


@shows(
    "publish.quantize", "publish.full_every", "publish.max_delta_share", "publish.keep",
    "publish.notify", "publish.notify_seconds", "publish.client", "publish.item_vectors",
)  # fmt: skip
def test_effects_of_the_settings_of_the_publisher(runs: Runs) -> None:
    ran, [settings, *_] = _told(
        runs, "all", "publish.quantize={item: int8}", "publish.full_every=3", "publish.keep=5",
        "publish.max_delta_share=0.5", "publish.notify=['a:1']", "publish.notify_seconds=2",
        "publish.client={insecure: true}", "publish.item_vectors=false",
    )  # fmt: skip
    assert settings == {
        "output": "served-all",
        "options": {
            "quantize": {"item": "int8"}, "full_every": 3, "keep": 5, "max_delta_share": 0.5
        },
        "notify": ["a:1"],
        "notify_seconds": 2.0,
        "client": {"insecure": True},
        "item_vectors": False,
    }  # fmt: skip
    assert any("do not serve it yet: a:1 (UNAVAILABLE)" in each for each in ran.messages)
