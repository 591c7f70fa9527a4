"""Built-in streams pass the kit, and their errors name the partition, the offset and the fix."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sparring import make_plugin_manager
from sparring.contracts import Options, hookimpl
from sparring.errors import DataError, PluginError
from sparring.plugins.distributions import PluginSource
from sparring_testing import StreamSourceTests
from sparring_train.config.sections.stream import StreamData
from sparring_train.data.dataset import OpenRequest
from sparring_train.data.stream import folder, nats, redis_streams
from sparring_train.data.stream.dataset import open_source
from sparring_train.hookspecs import StreamDescriptor

from .stream_files import WritableFolder, WritableNats, WritableRedis, WritableTopic


class TestFolder(StreamSourceTests):
    @pytest.fixture
    def stream(self, tmp_path: Path) -> Any:
        return WritableFolder(tmp_path / "events", is_numbered=False)


class TestNumberedFolders(StreamSourceTests):
    @pytest.fixture
    def stream(self, tmp_path: Path) -> Any:
        return WritableFolder(tmp_path / "events", ["0", "1"], is_numbered=True)


class TestRedis(StreamSourceTests):
    @pytest.fixture
    def stream(
        self, new_redis_streams: Callable[..., WritableRedis], monkeypatch: pytest.MonkeyPatch
    ) -> Any:
        # Offsets are found in several pages.
        monkeypatch.setattr(redis_streams, "_PAGE", 4)
        return new_redis_streams(2)


class TestKafka(StreamSourceTests):
    @pytest.fixture
    def stream(self, new_topic: Callable[[], WritableTopic]) -> Any:
        return new_topic()


class TestNats(StreamSourceTests):
    @pytest.fixture
    def stream(self, new_nats_streams: Callable[..., WritableNats]) -> Any:
        return new_nats_streams(2)


def test_a_consumer_that_nats_removed_is_created_again(
    new_nats_streams: Callable[..., WritableNats],
) -> None:
    stream = new_nats_streams()
    [name] = stream.partitions
    stream.append(name, range(4))
    source = stream.open()
    assert source.read(name, 1, 2, time.monotonic() + 5).next_offset == 3
    consumer = source._wait_for(source._readers[name].subscription.consumer_info)
    stream.remove_consumer(name, consumer.name)
    assert source.read(name, 3, 2, time.monotonic() + 30).next_offset == 5
    source.close()


@pytest.mark.parametrize("size", [40, 120])  # Messages follow the lost ones, or none do.
def test_messages_of_nats_that_a_broken_connection_loses_are_read_again(
    new_nats_streams: Callable[..., WritableNats], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    proxies = pytest.importorskip("sparring_redis.testing.proxy", reason="breaks connections")
    monkeypatch.setattr(nats, "_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(nats, "_REPLY_SECONDS", 0.5)
    stream = new_nats_streams()
    [name] = stream.partitions
    stream.append(name, range(120))
    server, _, path = stream.url.rpartition("/")
    with proxies.FaultProxy(int(server.rpartition(":")[2])) as proxy:
        stream.url = f"nats://127.0.0.1:{proxy.port}/{path}"
        source = stream.open()
        found: list[int] = []
        offset, end = 1, time.monotonic() + 60
        while len(found) < 120 and time.monotonic() < end:
            # In the middle of messages that the server has sent.
            proxy.arm(proxies.Fault(cut_reply_at=3000 if len(found) < 50 else None))
            read = source.read(name, offset, size, time.monotonic() + 0.3)
            offset = read.next_offset
            found += [number for each in read.messages for number in stream.numbers(each)]
        source.close()
    assert found == list(range(120))


def test_nats_that_is_not_ready_is_asked_again(
    new_nats_streams: Callable[..., WritableNats], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = new_nats_streams()
    [name] = stream.partitions
    source = stream.open()
    from nats.js.errors import ServiceUnavailableError

    original, errors = source._jetstream.stream_info, [ServiceUnavailableError()] * 2

    async def stream_info(name: str) -> Any:
        if errors:
            raise errors.pop()
        return await original(name)

    monkeypatch.setattr(source._jetstream, "stream_info", stream_info)
    assert source.end_offsets() == {name: 1}
    errors.append(ServiceUnavailableError())
    monkeypatch.setattr(nats, "_TIMEOUT_SECONDS", 0)
    with pytest.raises(DataError, match=r"ServiceUnavailableError.*runs with JetStream"):
        source.end_offsets()
    source.close()


def test_wrong_use_of_nats_is_reported(
    new_nats_streams: Callable[..., WritableNats], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = new_nats_streams()
    [name] = stream.partitions
    stream.append(name, range(4))
    source = stream.open()
    assert source.read(name, 1, 2, time.monotonic() + 5).next_offset == 3
    with pytest.raises(DataError, match=rf"{name}: found messages before offset 5, expected 9"):
        source.read(name, 9, 1, time.monotonic())
    stream.delete(name)
    with pytest.raises(DataError, match=r"NotFoundError.*stream not found.*name of the stream"):
        source.end_offsets()
    source.close()
    monkeypatch.setattr(nats, "_ATTEMPTS", 1)
    for url, message in (
        ("nats://127.0.0.1:1/CLICKS", r"NoServersError.*check that the server runs with JetStream"),
        ("nats://127.0.0.1:1", r"expected nats://host:4222/CLICKS"),
    ):
        stream.url = url
        with pytest.raises(DataError, match=message):
            stream.open()


# Tansu does not report them.
@pytest.mark.parametrize("kafka_broker", ["simulated_kafka"], indirect=True)
def test_offsets_that_kafka_does_not_have_are_reported(
    new_topic: Callable[[], WritableTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = new_topic()
    name = stream.partitions[0]
    stream.append(name, range(3))
    source = stream.open()
    deadline = time.monotonic() + 20
    with pytest.raises(DataError, match=rf"{name}: found messages before offset 3, expected 9"):
        source.read(name, 9, 1, deadline)
    # The simulated broker removes no messages.
    monkeypatch.setattr(source, "_range", lambda partition: (12, 20))
    with pytest.raises(DataError, match=r"offsets 9 to 11 are missing.*now starts at 12"):
        source.read(name, 9, 1, deadline)
    source.close()
    stream.url = "kafka://127.0.0.1:9092"
    with pytest.raises(DataError, match=r"expected kafka://host:9092/clicks"):
        stream.open()


def test_a_file_between_others_is_rejected(tmp_path: Path) -> None:
    stream = WritableFolder(tmp_path / "events", is_numbered=False)
    stream.append(".", range(4))
    stream.append(".", range(4, 6))
    source = stream.open()
    assert source.end_offsets() == {".": 6}
    first, between = (
        tmp_path / "events/part-000000.parquet",
        tmp_path / "events/part-000002.parquet",
    )
    shutil.copy(first, between)
    with pytest.raises(DataError, match=r"part-000004.parquet with the first row 4, expected 8"):
        source.end_offsets()
    between.unlink()
    first.unlink()
    with pytest.raises(DataError, match=r"part-000000.parquet was removed.*restore it"):
        source.end_offsets()


def test_a_gap_between_numbered_files_is_rejected(tmp_path: Path) -> None:
    stream = WritableFolder(tmp_path / "events", is_numbered=True)
    for begin in (0, 4, 8, 12):
        stream.append(".", range(begin, begin + 4))
    # In the order of numbers, 8 is before 12.
    assert stream.open().end_offsets() == {".": 16}
    (tmp_path / "events/4.parquet").unlink()
    with pytest.raises(DataError, match=r"8.parquet with the first row 8, expected 4"):
        stream.open().end_offsets()


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    from sparring_train.data.stream.folder import FolderSource

    expected = r"^opening the stream \S*nowhere failed: found no folder; create it, or set the URL"
    with pytest.raises(DataError, match=expected):
        FolderSource(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"nats://x/y failed: .*plugin for this kind of stream"):
        FolderSource("nats://x/y")


def test_a_folder_without_rows_of_a_file_continues_with_the_next(tmp_path: Path) -> None:
    stream = WritableFolder(tmp_path / "events", is_numbered=False)
    for numbers in ([1], [], [2]):
        stream.append(".", numbers)
    read = stream.open().read(".", 1, 5, time.monotonic())
    assert stream.numbers(read.messages[0]) == [2]


def test_a_remote_folder_without_new_files_is_listed_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = WritableFolder(tmp_path / "events", is_numbered=True)
    source = stream.open()
    source._max_poll_seconds = folder._MAX_REMOTE_POLL_SECONDS
    clock = [100.0]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(folder, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    listed: list[float] = []
    original = source._listed
    monkeypatch.setattr(
        source, "_listed", lambda name: (listed.append(clock[0]), original(name))[1]
    )
    while clock[0] < 105:
        # Reads with short deadlines do not list more often.
        assert source.read(".", 0, 1, clock[0] + 0.01).next_offset == 0
    pauses = np.diff(listed)
    np.testing.assert_allclose(pauses[:5], [0.05, 0.1, 0.2, 0.4, 0.8], atol=0.02)
    assert pauses.max() == pytest.approx(1, abs=0.02)
    stream.append(".", [7])
    assert source.read(".", 0, 1, clock[0] + 2).next_offset == 1
    assert source.read(".", 1, 1, clock[0] + 0.01).next_offset == 1
    assert source._polls["."][1] == 0.1


def test_an_entry_removed_from_the_middle_is_reported(
    new_redis_streams: Callable[..., WritableRedis],
) -> None:
    stream = new_redis_streams()
    [name] = stream.partitions
    stream.append(name, range(3))
    second = stream.client.xrange(name)[1][0]
    stream.client.xdel(name, second)
    with pytest.raises(DataError, match=rf"partition {name}: an entry was removed by XDEL"):
        stream.open().end_offsets()
    stream.client.xtrim(name, maxlen=1, approximate=False)
    assert stream.open().earliest_offsets() == {name: 2}


def test_entries_that_are_trimmed_between_reads_are_reported(
    new_redis_streams: Callable[..., WritableRedis],
) -> None:
    stream = new_redis_streams()
    [name] = stream.partitions
    stream.append(name, range(9))
    source = stream.open()
    assert source.read(name, 0, 2, time.monotonic()).next_offset == 2
    stream.remove(name, 5)
    with pytest.raises(DataError, match=r"offsets 2 to 4 are missing.*now starts at 5"):
        source.read(name, 2, 2, time.monotonic())


def test_a_deleted_stream_is_reported(new_redis_streams: Callable[..., WritableRedis]) -> None:
    stream = new_redis_streams()
    [name] = stream.partitions
    stream.append(name, range(2))
    source = stream.open()
    with pytest.raises(DataError, match=r"found 2 entries, expected at least 5.*was deleted"):
        source.read(name, 5, 1, time.monotonic())
    assert source.read(name, 0, 9, time.monotonic()).next_offset == 2
    stream.client.delete(name)
    stream.append(name, [0])
    with pytest.raises(DataError, match=r"found 1 entries, expected at least 2.*was deleted"):
        source.read(name, 2, 1, time.monotonic())


def test_wrong_use_of_redis_is_reported(
    new_redis_streams: Callable[..., WritableRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = new_redis_streams()
    [name] = stream.partitions
    stream.client.xadd(name, {"body": b"x"})
    with pytest.raises(DataError, match=r"offset 0: the entry has no field 'value', found body"):
        stream.open().read(name, 0, 1, time.monotonic())
    stream.client.set("text", "x")
    stream.url = stream.url.replace(name, "text")
    with pytest.raises(DataError, match=r"WRONGTYPE.*check that the server runs"):
        stream.open().end_offsets()
    monkeypatch.setenv("REDISCLI_AUTH", "wrong")
    with pytest.raises(DataError, match=r"failed: .*and the password in REDISCLI_AUTH"):
        stream.open().end_offsets()
    monkeypatch.delenv("REDISCLI_AUTH")
    stream.url = "redis://127.0.0.1/clicks"
    with pytest.raises(DataError, match=r"expected redis://host:6379/0/clicks"):
        stream.open()
    stream.url = "redis://127.0.0.1:1/0/clicks"
    with pytest.raises(DataError, match=r"reading redis://127.0.0.1:1/0/clicks failed: .*111"):
        stream.open().end_offsets()


def test_a_stream_without_entries_may_have_the_wrong_name(
    new_redis_streams: Callable[..., WritableRedis], caplog: pytest.LogCaptureFixture
) -> None:
    stream = new_redis_streams()
    [name] = stream.partitions
    assert stream.open().earliest_offsets() == {name: 0}
    assert f"stream {name} has no entry; check its name" in caplog.text


@pytest.mark.parametrize("kafka_broker", ["simulated_kafka"], indirect=True)
def test_wrong_use_of_kafka_is_reported(
    new_topic: Callable[[], WritableTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    import confluent_kafka
    from confluent_kafka import KafkaError, KafkaException

    from sparring_train.config.sections.stream import KafkaStreamOptions
    from sparring_train.data.stream import kafka

    stream = new_topic()
    monkeypatch.setattr(kafka, "_TIMEOUT_SECONDS", 0.5)
    with pytest.raises(
        DataError, match=r"failed: .*check that the servers run, the name of the topic"
    ):
        kafka.KafkaSource("kafka://127.0.0.1:1/clicks", KafkaStreamOptions())
    with pytest.raises(DataError, match=r"failed: .*security.protocol.*data.options.settings"):
        kafka.KafkaSource(stream.url, KafkaStreamOptions(settings={"security.protocol": "none"}))
    # The simulated broker creates missing topics, and has no users.
    for code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._AUTHENTICATION):

        class Refusing(confluent_kafka.Consumer):  # type: ignore[misc]
            error = KafkaException(KafkaError(code))

            def list_topics(self, *args: Any) -> Any:
                raise self.error

        monkeypatch.setattr(confluent_kafka, "Consumer", Refusing)
        with pytest.raises(DataError, match=r"the name of the topic, .*the password in SPARRING"):
            stream.open()


def test_two_plugins_with_one_scheme_are_both_named() -> None:
    class Plugin:
        @hookimpl(optionalhook=True)
        def sparring_register_streams(self) -> Any:
            def open_nothing(*_: Any) -> Any:
                raise AssertionError

            return [
                StreamDescriptor(
                    name="mine", api_version=(1, 0), options=Options, open=open_nothing
                )
            ]

    manager = make_plugin_manager()
    for name in ("first", "second"):
        manager.load(PluginSource(name, f"sparring-{name}", "1", Plugin))
    data = StreamData(kind="stream", url="mine://events", categorical=("item",))
    with pytest.raises(PluginError, match=r"mine.*sparring-first.*sparring-second"):
        open_source(data, OpenRequest(0, None, plugin_manager=manager))
