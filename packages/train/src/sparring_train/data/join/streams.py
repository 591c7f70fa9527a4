"""The streams of a join as one stream, whose partitions of actions are named after their stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparring.errors import DataError
from sparring_train.data.stream.events import Events, MessageDecoder
from sparring_train.streams import StreamMessage, StreamRead, StreamSource

__all__ = ["IMPRESSIONS", "JoinedDecoder", "JoinedSource"]

IMPRESSIONS = ""
"""Name of the stream of impressions."""


class JoinedSource:
    """See the module.

    Args:
        sources: name → open stream; `IMPRESSIONS` for the impressions.
        urls: name → URL, for messages.

    Raises:
        DataError: the streams have different numbers of partitions.
    """

    def __init__(self, sources: Mapping[str, StreamSource], urls: Mapping[str, str]) -> None:
        self._sources = sources
        self.places: dict[str, tuple[str, str]] = {}
        """Partition → name of the stream, and name of the partition in it."""
        self.numbers: dict[str, int] = {}
        """Partition → its number in its stream."""
        counts = {}
        for stream, source in sources.items():
            names = sorted(source.partitions())
            counts[stream] = len(names)
            for number, name in enumerate(names):
                full = f"{stream}:{name}" if stream else name
                self.places[full] = stream, name
                self.numbers[full] = number
        for stream, count in counts.items():
            if count != counts[IMPRESSIONS]:
                raise DataError(
                    f"data.join.actions.{stream}: {urls[stream]} has {count} partitions, expected "
                    f"{counts[IMPRESSIONS]}, as {urls[IMPRESSIONS]} has, because the same key must be in "
                    "the partition of the same number; create the streams with equally many partitions, "
                    "and send events to partitions by their key"
                )
        self.num_partitions = counts[IMPRESSIONS]

    def partitions(self) -> Sequence[str]:
        return list(self.places)

    def earliest_offsets(self) -> Mapping[str, int]:
        return self._offsets(
            {name: each.earliest_offsets() for name, each in self._sources.items()}
        )

    def end_offsets(self) -> Mapping[str, int]:
        return self._offsets({name: each.end_offsets() for name, each in self._sources.items()})

    def _offsets(self, found: Mapping[str, Mapping[str, int]]) -> Mapping[str, int]:
        return {full: found[stream][name] for full, (stream, name) in self.places.items()}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        stream, name = self.places[partition]
        return self._sources[stream].read(name, offset, max_events, deadline)

    def close(self) -> None:
        for source in self._sources.values():
            source.close()


class JoinedDecoder:
    """Parses messages of all streams.

    Args:
        decoders: name of the stream → its decoder.
        places: see `JoinedSource.places`.
    """

    def __init__(
        self, decoders: Mapping[str, MessageDecoder], places: Mapping[str, tuple[str, str]]
    ) -> None:
        self._decoders, self._places = decoders, places

    def of(self, partition: str) -> MessageDecoder:
        """Returns the decoder of a partition."""
        return self._decoders[self._places[partition][0]]

    def parse(self, partition: str, message: StreamMessage) -> Events | None:
        """See `MessageDecoder.parse`."""
        return self.of(partition).parse(partition, message)

    @property
    def num_skipped(self) -> int:
        """See `MessageDecoder.num_skipped`."""
        return sum(each.num_skipped for each in self._decoders.values())
