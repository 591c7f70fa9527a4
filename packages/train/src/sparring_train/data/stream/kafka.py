"""Kafka and brokers with its protocol as a stream: ``kafka://host:9092,host:9092/<topic>,<topic>``.

The partitions are named ``<topic>/<number>``. Each has a consumer that is assigned to it, so no group of
consumers exists, and a long step loses no partition.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from sparring.errors import DataError, PluginError
from sparring_train.config.sections.stream import KafkaStreamOptions
from sparring_train.streams import OffsetGoneError, StreamMessage, StreamRead

__all__ = ["KafkaSource"]

_log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 30.0
_PASSWORD = "SPARRING_KAFKA_PASSWORD"


class KafkaSource:
    """See the module.

    Raises:
        DataError: the URL is incomplete, or a topic cannot be read.
        PluginError: the package confluent-kafka is not installed.
    """

    def __init__(self, url: str, options: KafkaStreamOptions) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise PluginError(
                f"reading {url} needs confluent-kafka, which is not installed; run: pip install "
                '"sparring-train[kafka]"'
            ) from error
        self._kafka: Any = confluent_kafka
        self._url = url
        servers, _, topics = url.partition("://")[2].partition("/")
        self._topics = [unquote(name) for name in topics.split(",") if name]
        if not servers or not self._topics:
            raise DataError(
                f"data.url: found {url}, expected kafka://host:9092/clicks: the servers and the name of "
                "the topic, or several names with commas"
            )
        password = os.environ.get(_PASSWORD)
        secrets = {} if password is None else {"sasl.password": password}
        self._settings = {
            # Memory for messages that were fetched, but not read.
            "queued.max.messages.kbytes": 16_384,
            **options.settings,
            **secrets,
            "bootstrap.servers": servers,
            # The client requires it. It is not used, because partitions are assigned.
            "group.id": "sparring",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        self._consumers: dict[str, Any] = {}
        self._next: dict[str, int] = {}
        self._client = self._new_consumer()
        self._partitions = [
            f"{topic}/{number}" for topic in self._topics for number in self._numbers(topic)
        ]

    def partitions(self) -> Sequence[str]:
        return self._partitions

    def earliest_offsets(self) -> Mapping[str, int]:
        return {name: self._range(name)[0] for name in self._partitions}

    def end_offsets(self) -> Mapping[str, int]:
        return {name: self._range(name)[1] for name in self._partitions}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        consumer = self._consumer_at(partition, offset)
        # After an error, the next read assigns the partition again.
        del self._next[partition]
        messages: list[StreamMessage] = []
        after = offset
        while not messages and after == offset:
            received = consumer.poll(max(deadline - time.monotonic(), 0))
            batch = [] if received is None else [received]
            if received is not None and received.error() is None and max_events > 1:
                batch += consumer.consume(max_events - 1, 0)
            for each in batch:
                if each.error() is None:
                    messages.append(self._message(each))
                    after = each.offset() + 1
                else:
                    after = max(after, self._handle(partition, after, each))
            if time.monotonic() >= deadline:
                break
        self._next[partition] = after
        return StreamRead(after, messages)

    def close(self) -> None:
        for each in (self._client, *self._consumers.values()):
            each.close()
        self._consumers.clear()

    def _message(self, received: Any) -> StreamMessage:
        kind, milliseconds = received.timestamp()
        is_known = kind != self._kafka.TIMESTAMP_NOT_AVAILABLE
        timestamp = milliseconds / 1000 if is_known else None
        return StreamMessage(received.offset(), received.value() or b"", timestamp)

    def _handle(self, partition: str, offset: int, received: Any) -> int:
        """Raises for an error from which the client does not recover. Returns the next offset."""
        error, codes = received.error(), self._kafka.KafkaError
        if error.code() == codes._PARTITION_EOF:
            # Higher than the offset after the last message if markers of transactions follow it.
            return int(received.offset())
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            earliest, end = self._range(partition)
            if offset < earliest:
                raise OffsetGoneError(self._url, partition, offset, earliest)
            raise DataError(
                f"reading {self._url}, partition {partition}: found messages before offset {end}, "
                f"expected {offset}, because the topic was deleted; use another folder for snapshots",
                partition=partition,
                offset=offset,
            )
        if error.retriable() or error.code() in (codes._TRANSPORT, codes._ALL_BROKERS_DOWN):
            _log.warning("%s: %s; the client tries again", self._url, error)
            return offset
        raise self._failed(error)

    def _consumer_at(self, partition: str, offset: int) -> Any:
        consumer = self._consumers.get(partition)
        if consumer is None:
            consumer = self._consumers[partition] = self._new_consumer()
        if self._next.get(partition) != offset:
            consumer.assign([self._place(partition, offset)])
            self._next[partition] = offset
        return consumer

    def _new_consumer(self) -> Any:
        try:
            return self._kafka.Consumer(self._settings, logger=_log)
        except self._kafka.KafkaException as error:
            raise self._failed(error.args[0]) from error

    def _place(self, partition: str, offset: int = 0) -> Any:
        topic, _, number = partition.rpartition("/")
        return self._kafka.TopicPartition(topic, int(number), offset)

    def _range(self, partition: str) -> tuple[int, int]:
        """Returns the earliest and the end offset."""
        place = self._place(partition)
        try:
            earliest, end = self._client.get_watermark_offsets(place, _TIMEOUT_SECONDS)
        except self._kafka.KafkaException as error:
            raise self._failed(error.args[0]) from error
        return earliest, end

    def _numbers(self, topic: str) -> list[int]:
        """Returns the numbers of a topic's partitions."""
        try:
            found = self._client.list_topics(topic, _TIMEOUT_SECONDS).topics[topic]
        except self._kafka.KafkaException as error:
            raise self._failed(error.args[0]) from error
        if found.error is not None:
            raise self._failed(found.error)
        return sorted(found.partitions)

    def _failed(self, error: Any) -> DataError:
        return DataError(
            f"reading {self._url} failed: {error}; check that the servers run, the name of the topic, "
            f"data.options.settings, and the password in {_PASSWORD}"
        )
