"""A client that predicts clicks with the rows and the parameters of one version, and measures them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from live_events import DRIFT, NUM_ITEMS, NUM_USERS, World

from sparring.errors import SparringError
from sparring_serve import LookupClient, VersionGoneError

EVENTS_PER_PULL, MAX_ATTEMPTS = 2000, 3
_ALL_IDS = {"user": np.arange(NUM_USERS), "item": np.arange(NUM_ITEMS)}


@dataclass(frozen=True)
class Reply:
    """Measurements of one reply. Times are seconds after the begin."""

    seconds: float
    step: int
    auc: float
    log_loss: float
    before_drift: float
    """Log loss of the last version before the drift."""
    best: float
    """Log loss of the correct probabilities."""


@dataclass
class Replies:
    """Everything that a client received."""

    replies: list[Reply] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    num_mixed: int = 0
    """Replies whose rows and parameters belong to different versions."""
    num_repeated: int = 0
    """Requests that were repeated, because the other server did not have the version yet."""


@dataclass(frozen=True)
class Version:
    """Rows of all users and items, and the parameters, of one version."""

    step: int
    rows: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]

    def logits(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Returns the outputs of the model of `configs/live.yaml`, a DLRM without numeric columns."""
        layer = self.parameters
        dense = np.maximum(layer["dense_arch.0.weight"][:, 0] + layer["dense_arch.0.bias"], 0)
        user, item = self.rows["user"][users], self.rows["item"][items]
        products = np.stack([user @ dense, item @ dense, (user * item).sum(axis=1)], axis=1)
        inputs = np.concatenate([np.tile(dense, (len(users), 1)), products], axis=1)
        hidden = inputs @ layer["over_arch.0.weight"].T + layer["over_arch.0.bias"]
        logits = np.maximum(hidden, 0) @ layer["over_arch.2.weight"].T + layer["over_arch.2.bias"]
        return logits[:, 0]


class Client:
    """Predicts events that happen at the moment of each call, and compares them with the world.

    Args:
        serving: configuration of the servers.
        world: generates the events.
    """

    def __init__(self, serving: Path, world: World) -> None:
        self._client = LookupClient.from_config(serving)
        self._world = world
        self._random = np.random.default_rng(3)
        self._contents: dict[str, bytes] = {}
        self._before_drift: Version | None = None
        self.received = Replies()

    def ask(self) -> None:
        """Receives and measures one version."""
        try:
            version = self._pull()
        except SparringError as error:
            self.received.errors.append(f"{type(error).__name__}: {error}")
            return
        now = time.time()
        seconds = now - self._world.begin
        if seconds < DRIFT[0] or self._before_drift is None:
            self._before_drift = version
        users, items, labels = self._world.impressions(self._random, EVENTS_PER_PULL, now)
        correct = self._world.probabilities(users, items, now)
        logits = version.logits(users, items)
        self.received.replies.append(
            Reply(
                seconds,
                version.step,
                auc(logits, labels),
                log_loss(logits, correct),
                log_loss(self._before_drift.logits(users, items), correct),
                log_loss(np.log(correct / (1 - correct)), correct),
            )
        )

    def _pull(self) -> Version:
        """Returns the newest version, with the rows and the parameters of the same version."""
        for attempt in range(MAX_ATTEMPTS):
            try:
                rows = self._client.pull(_ALL_IDS)
                model = self._client.model(version=rows.versions[0].hash)
                break
            except VersionGoneError:
                # The other server replied, and does not have this version yet.
                if attempt == MAX_ATTEMPTS - 1:
                    raise
                self.received.num_repeated += 1
        parameters = {name: np.asarray(each) for name, each in model.parameters.items()}
        content = b"".join(each.tobytes() for each in (*rows.rows.values(), *parameters.values()))
        # Both servers return the same bytes for a version.
        is_equal = self._contents.setdefault(model.version.hash, content) == content
        self.received.num_mixed += rows.versions != (model.version,) or not is_equal
        return Version(model.version.step, dict(rows.rows), parameters)

    def close(self) -> None:
        self._client.close()


def log_loss(logits: np.ndarray, probabilities: np.ndarray) -> float:
    """Returns the mean log loss that labels with these probabilities are expected to have."""
    return float(np.mean(np.logaddexp(0, logits) - probabilities * logits))


def auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """Returns the share of pairs of a positive and a negative label in the correct order."""
    is_positive = labels[np.argsort(logits, kind="stable")] == 1
    num_positive, num_negative = is_positive.sum(), (~is_positive).sum()
    num_below = np.cumsum(~is_positive)[is_positive].sum()
    return float(num_below / (num_positive * num_negative))
