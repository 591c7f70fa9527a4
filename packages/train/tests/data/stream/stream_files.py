"""Streams that tests write."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

__all__ = ["WritableFolder", "WritableNats", "WritableRedis", "WritableTopic", "as_arrow"]


def as_arrow(table: Any) -> bytes:
    """Returns a table as an Arrow IPC stream."""
    sink = io.BytesIO()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


class WritableFolder:
    """A folder of Parquet files with the column `number`.

    Args:
        path: the folder.
        partitions: subfolders; none for one partition.
        is_numbered: whether names of files are the offsets of their first rows.
    """

    def __init__(self, path: Path, partitions: Sequence[str] = (), *, is_numbered: bool) -> None:
        self.path, self.is_numbered = path, is_numbered
        self.partitions = partitions or ["."]
        self._counts = dict.fromkeys(self.partitions, 0)
        for name in self.partitions:
            (path / name).mkdir(parents=True)

    def open(self) -> Any:
        from sparring_train.data.stream.folder import FolderSource

        return FolderSource(str(self.path))

    def append(self, partition: str, numbers: Sequence[int]) -> None:
        self.append_table(partition, pyarrow.table({"number": list(numbers)}))

    def append_table(self, partition: str, table: Any, row_group_size: int = 5) -> None:
        count = self._counts[partition]
        self._counts[partition] += table.num_rows
        name = f"{count}" if self.is_numbered else f"part-{count:06d}"
        folder = self.path / partition
        parquet.write_table(table, folder / f".{name}", row_group_size=row_group_size)
        (folder / f".{name}").rename(folder / f"{name}.parquet")

    def numbers(self, message: Any) -> list[int]:
        numbers: list[int] = message.value.column("number").to_pylist()
        return numbers

    def remove(self, partition: str, count: int) -> bool:
        """Removes the first file."""
        if self.is_numbered:
            min((self.path / partition).glob("*.parquet")).unlink()
        return self.is_numbered


class WritableRedis:
    """Redis Streams whose entries contain a number as text.

    Args:
        address: `host:port` of the server.
        names: names of the streams.
    """

    def __init__(self, address: str, names: Sequence[str]) -> None:
        import redis

        self.partitions = names
        self.url = f"redis://{address}/0/{','.join(names)}"
        self.client = redis.Redis.from_url(f"redis://{address}/0")

    def open(self) -> Any:
        from sparring_train.config.sections.stream import RedisStreamOptions
        from sparring_train.data.stream.redis_streams import RedisSource

        return RedisSource(self.url, RedisStreamOptions())

    def append(self, partition: str, numbers: Sequence[int]) -> None:
        self.append_payloads(partition, [str(each).encode() for each in numbers])

    def append_payloads(self, partition: str, payloads: Sequence[bytes]) -> None:
        for each in payloads:
            self.client.xadd(partition, {"value": each})

    def numbers(self, message: Any) -> list[int]:
        return [int(message.value)]

    def remove(self, partition: str, count: int) -> bool:
        self.client.xtrim(partition, maxlen=self.client.xlen(partition) - count, approximate=False)
        return True


class WritableNats:
    """Streams of JetStream whose messages contain a number as text.

    Args:
        server: `nats://host:port` of the server.
        names: names of the streams, which are created.
    """

    def __init__(self, server: str, names: Sequence[str]) -> None:
        self.partitions = names
        self._server = server
        self.url = f"{server}/{','.join(names)}"
        for name in names:
            self._run("add_stream", name=name, subjects=[f"{name}.*"])

    def open(self) -> Any:
        from sparring_train.config.sections.stream import NatsStreamOptions
        from sparring_train.data.stream.nats import NatsSource

        return NatsSource(self.url, NatsStreamOptions())

    def append(self, partition: str, numbers: Sequence[int]) -> None:
        self.append_payloads(partition, [str(each).encode() for each in numbers])

    def append_payloads(self, partition: str, payloads: Sequence[bytes]) -> None:
        self._run("publish", *[(f"{partition}.new", each) for each in payloads])

    def numbers(self, message: Any) -> list[int]:
        return [int(message.value)]

    def remove(self, partition: str, count: int) -> bool:
        first = min(self.open().earliest_offsets()[name] for name in [partition])
        self._run("purge_stream", name=partition, seq=first + count)
        return True

    def delete(self, partition: str) -> None:
        self._run("delete_stream", name=partition)

    def remove_consumer(self, partition: str, consumer: str) -> None:
        self._run("delete_consumer", (partition, consumer))

    def _run(self, method: str, *calls: Any, **options: Any) -> None:
        """Calls a method of JetStream, once for each entry of `calls`."""

        async def call() -> None:
            import nats

            client = await nats.connect(self._server)
            function = getattr(client.jetstream(), method)
            for each in calls or [()]:
                await function(*each, **options)
            await client.close()

        asyncio.run(call())


class WritableTopic:
    """A topic of Kafka. Messages contain a number as text.

    Args:
        producer: producer of the broker.
        address: `host:port` of the broker.
        topic: name of the topic, which is created with the partitions.
        num_partitions: number of partitions.
    """

    def __init__(self, producer: Any, address: str, topic: str, num_partitions: int) -> None:
        self.producer, self.topic = producer, topic
        self.url = f"kafka://{address}/{topic}"
        self.partitions = [f"{topic}/{number}" for number in range(num_partitions)]

    def open(self) -> Any:
        from sparring_train.config.sections.stream import KafkaStreamOptions
        from sparring_train.data.stream.kafka import KafkaSource

        return KafkaSource(self.url, KafkaStreamOptions())

    def append(self, partition: str, numbers: Sequence[int]) -> None:
        self.append_payloads(partition, [str(each).encode() for each in numbers])

    def append_payloads(self, partition: str, payloads: Sequence[bytes]) -> None:
        number = int(partition.rpartition("/")[2])
        for each in payloads:
            self.producer.produce(self.topic, each, partition=number)
        assert self.producer.flush(30) == 0

    def numbers(self, message: Any) -> list[int]:
        return [int(message.value)]

    def remove(self, partition: str, count: int) -> bool:
        return False
