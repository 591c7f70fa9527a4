"""Effects of the keys of `training.trackers`."""

from __future__ import annotations

from sparring.contracts import API_VERSION, hookimpl
from sparring.plugins.distributions import PluginSource
from sparring_train.hookspecs import TrackerDescriptor
from sparring_train.run.result import SilentProgress
from sparring_train.trackers.contract import TrackerRequest

from .config_runs import Effects, Runs

__all__ = ["register"]


class _Trial(SilentProgress):
    """Registers a tracker that keeps the requests with which it was opened."""

    def __init__(self) -> None:
        self.requests: list[TrackerRequest] = []

    @hookimpl(optionalhook=True)
    def sparring_register_trackers(self) -> list[TrackerDescriptor]:
        return [TrackerDescriptor(name="trial", api_version=API_VERSION, open=self.open)]

    def open(self, request: TrackerRequest) -> _Trial:
        self.requests.append(request)
        return self

    def log_metrics(self, step: int, metrics: object) -> None: ...

    def log_file(self, path: object) -> None: ...

    def close(self, *, succeeded: bool) -> None: ...


def register(effects: Effects) -> None:
    """Registers a function that shows the effects of the keys."""

    @effects.of(*(f"training.trackers.<name>.{key}" for key in ("kind", "url", "project", "name")))
    def _(runs: Runs) -> None:
        trial = _Trial()
        runs.manager.load(PluginSource("trial", "sparring-trial", "1", lambda: trial))
        runs.ratings("training.trackers=[trial, {kind: trial, url: a/b, project: c, name: d}]")
        alone, full = trial.requests
        assert (alone.url, alone.project, alone.name) == (None, "sparring", None)
        assert (full.url, full.project, full.name) == ("a/b", "c", "d")
