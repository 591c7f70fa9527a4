"""A process that publishes the snapshots of a running trainer, so that no step waits.

    python -m sparring_serve.publishing.process

The first line of standard input is a `PublishSettings`, and each further line a `PublishOrder`, as JSON.
Each order is answered by one line on standard output: a `PublishAnswer`. The process ends at the end of
standard input.

Full serving snapshots are written by a thread, because each of them contains all rows. Deltas on the
previous one are published meanwhile.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparring import make_plugin_manager
from sparring.errors import SparringError
from sparring_serve.config import ClientConfig
from sparring_serve.publishing.model_files import find_model_reader
from sparring_serve.publishing.notify import Notifier
from sparring_serve.publishing.publisher import (
    GateClosedError,
    PublisherOptions,
    find_merge,
    merge_layers,
    publish_newest,
)

__all__ = ["PublishAnswer", "PublishOrder", "PublishSettings"]


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Settings of the process.

    Args:
        output: URL of the folder of serving snapshots.
        options: Arguments of `PublisherOptions`.
        notify: Addresses of servers to notify.
        client: Fields of `ClientConfig` for these servers.
        notify_seconds: Timeout of a notification.
        item_vectors: See `find_model_reader`.
    """

    output: str
    options: Mapping[str, Any]
    notify: Sequence[str] = ()
    client: Mapping[str, Any] = field(default_factory=dict)
    notify_seconds: float = 5.0
    item_vectors: bool = True


@dataclass(frozen=True, slots=True)
class PublishOrder:
    """Order to publish a committed snapshot.

    Args:
        snapshot: URL of the snapshot. Empty: servers are only notified, for example of a closed gate.
        keep_steps: See `PublisherOptions`.
    """

    snapshot: str
    keep_steps: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """Result of an order.

    Args:
        result: ``published``; ``unchanged``, if the snapshot was published before; ``withheld``, if the
            gate is closed; ``notified``, without a snapshot; or ``failed``.
        reason: Why nothing was published.
        url: URL of the serving snapshot.
        is_delta: Whether it is a delta.
        convert_seconds: Time of reading the snapshot and writing the serving snapshot.
        notify_seconds: Time until all servers had replied.
        not_notified: Address → reason, for servers that do not serve the version yet.
    """

    result: str
    reason: str = ""
    url: str = ""
    is_delta: bool = False
    convert_seconds: float = 0.0
    notify_seconds: float = 0.0
    not_notified: Mapping[str, str] = field(default_factory=dict)


class _Process:
    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings
        self._read_model = find_model_reader(
            make_plugin_manager(), item_vectors=settings.item_vectors
        )
        self._notifier: Notifier | None = None
        self._merging: threading.Thread | None = None
        if settings.notify:
            config = ClientConfig.model_validate(dict(settings.client))
            self._notifier = Notifier(settings.notify, config, settings.notify_seconds)

    def publish(self, order: PublishOrder) -> PublishAnswer:
        begin = time.perf_counter()
        if not order.snapshot:
            failed = {} if self._notifier is None else self._notifier.notify()
            return PublishAnswer("notified", not_notified=failed)
        options = PublisherOptions(
            **{**self._settings.options, "keep_steps": tuple(order.keep_steps)},
            merges_separately=self._settings.options.get("full_every") != 1,
        )
        try:
            published = publish_newest(
                order.snapshot, self._settings.output, options, None, self._read_model
            )
        except GateClosedError as error:
            return PublishAnswer("withheld", str(error))
        except (SparringError, OSError) as error:
            return PublishAnswer("failed", f"{type(error).__name__}: {error}")
        converted = time.perf_counter()
        if published is None:
            return PublishAnswer("unchanged")
        failed = {} if self._notifier is None else self._notifier.notify()
        self._start_merging(options)
        return PublishAnswer(
            "published",
            url=published.written.url,
            is_delta=published.is_delta,
            convert_seconds=converted - begin,
            notify_seconds=time.perf_counter() - converted,
            not_notified=failed,
        )

    def _start_merging(self, options: PublisherOptions) -> None:
        """Starts to write a full serving snapshot, if one is due and none is being written."""
        if not options.merges_separately or (
            self._merging is not None and self._merging.is_alive()
        ):
            return
        name = find_merge(self._settings.output, options)
        if name is not None:
            self._merging = threading.Thread(target=self._merge, args=(name,))
            self._merging.start()

    def _merge(self, name: str) -> None:
        try:
            merge_layers(self._settings.output, name)
        except Exception as error:
            # For example, the disk is full. A later version tries again.
            logging.warning("writing a full version of %s failed: %s", name, error)


def main() -> None:
    """Publishes until the end of standard input."""
    # A signal to the process group ends the trainer, which then closes standard input.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Whatever a library prints must not be an answer.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="publisher: %(message)s")
    process: _Process | None = None
    for line in sys.stdin:
        given = json.loads(line)
        if process is None:
            process = _Process(PublishSettings(**given))
            continue
        try:
            answer = process.publish(PublishOrder(**given))
        except Exception as error:
            logging.exception("publishing %s failed", given.get("snapshot"))
            answer = PublishAnswer("failed", f"{type(error).__name__}: {error}")
        print(json.dumps(asdict(answer)), file=answers, flush=True)


if __name__ == "__main__":
    main()
