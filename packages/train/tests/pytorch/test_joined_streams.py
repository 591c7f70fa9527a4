"""Impressions are joined with actions before they are trained, exactly once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pyarrow = pytest.importorskip("pyarrow", reason="writes Parquet")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from sparring import hash_strings, list_snapshots, make_plugin_manager, open_snapshot
from sparring.errors import ConfigError, DataError, PluginError
from sparring_cli.application import main
from sparring_train.config.reading.loader import parse_config
from sparring_train.data.join.state_files import JOIN, StateFiles
from sparring_train.data.stream.cut_log import read_cuts
from sparring_train.data.table.strings import find_strings
from sparring_train.metrics_files.stream_families import stream_families
from sparring_train.pytorch.trainer import train

from ..config.config_runs import Runs
from ..data.stream.stream_files import WritableFolder
from .stream_runs import Quiet

NOON = 1_700_000_000
NUM_IMPRESSIONS, WINDOW = 300, 20.0
CONFIG = """
seed: 3
threads: 1
data:
  kind: stream
  url: impressions
  label: clicked
  categorical: [user, item]
  types: {user: string, shown: string}
  numeric: [price]
  event_time: at
  batch_size: 32
  max_milliseconds: 20000
  stop_at_end: true
  join:
    key: [shown]
    actions: {clicks: {url: clicks, key: [impression], event_time: at}}
    window_seconds: 20
    watermark_seconds: 5
model: {kind: dlrm, embedding_dim: 4, bottom_mlp: [8], top_mlp: [8]}
storage: {backend: memory}
snapshots: {url: run, every_steps: 2, keep: 20}
"""


def write(name: str, table: Any, keys: Any, partitions: int) -> None:
    stream = WritableFolder(Path(name), [str(each) for each in range(partitions)], is_numbered=True)
    for number in range(partitions):
        mine = table.filter(pyarrow.array(keys % partitions == number))
        for begin in range(0, mine.num_rows, 25):
            stream.append_table(str(number), mine.slice(begin, 25))


@pytest.fixture
def clicked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Writes streams that arrive up to 4 s out of order. Returns impression → time of its click."""
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    random = np.random.default_rng(7)
    keys = np.arange(NUM_IMPRESSIONS)
    times = NOON + np.sort(random.uniform(0, 200, NUM_IMPRESSIONS)).round(3)
    clicks = {int(key): float(times[key] + random.uniform(0, 30)) for key in keys[::3]}
    order = np.argsort(times + random.uniform(0, 4, NUM_IMPRESSIONS))
    impressions = pyarrow.table(
        {
            "shown": [f"i{key}" for key in keys[order]],
            "user": [f"user {key % 40}" for key in keys[order]],
            "item": keys[order] % 60,
            "price": random.normal(size=NUM_IMPRESSIONS),
            "at": times[order],
        }
    )
    write("impressions", impressions, keys[order], 2)
    late = sorted(clicks, key=lambda key: clicks[key] + random.uniform(0, 4))
    table = pyarrow.table(
        {"impression": [f"i{key}" for key in late], "at": [clicks[key] for key in late]}
    )
    write("clicks", table, np.array(late), 2)
    return {key: clicks[key] - times[key] for key in clicks}


def run(*overrides: str) -> Any:
    seen = Quiet()
    return train(parse_config(CONFIG, list(overrides)), make_plugin_manager(), seen)


def newest(folder: str = "run") -> Any:
    return open_snapshot(list_snapshots(folder)[-1])


@pytest.mark.parametrize("storage", ["memory", "rocksdb"])
def test_a_run_that_resumes_trains_each_impression_once(
    clicked: dict[int, float], storage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if storage == "rocksdb":
        pytest.importorskip("sparring_rocksdb", reason='pip install "sparring[rocksdb]"')
    words = [f"data.join.storage={storage}", "data.join.path=store", "data.dictionary=true"]
    run(*words, "training.steps=3", "data.batch_size=50")
    opened = newest().state(JOIN).values["ranks"][0]["counts"]["open"]
    assert opened > 0
    result = run(*words, "snapshots.resume=true")
    counts = result.extra["join"]
    num_joined = sum(delay <= WINDOW for delay in clicked.values())
    # The windows of the last 20 s have not ended.
    assert 0 < counts["open"] < NUM_IMPRESSIONS / 4
    assert counts["joined"] + counts["without_action"] + counts["open"] == NUM_IMPRESSIONS
    assert num_joined - counts["open"] <= counts["joined"] <= num_joined
    users = [f"user {number}" for number in range(40)]
    assert find_strings("run", "user", hash_strings(users)) == users
    assert find_strings("run", "shown", hash_strings(["i0"])) == [None]
    cuts = read_cuts("run")
    assert [each.step for each in cuts] == list(range(1, result.steps + 1))
    assert all(each.reads for each in cuts)
    files = {each.name for each in Path("run/open_impressions").iterdir()}
    listed = [open_snapshot(url).state(JOIN).values["ranks"] for url in list_snapshots("run")]
    assert files == {name for ranks in listed for rank in ranks for name in rank["files"]}
    # Another size of batches is recorded, too.
    for start in ("--start=0", "--start=2", "--start=3"):
        assert main(["replay", "run.yaml", *words, start, "--json"]) == 0
        replayed = json.loads(capsys.readouterr().out)
        assert (replayed["steps"], replayed["differences"]) == (result.steps, [])


def test_open_impressions_with_erased_ids_are_not_trained(
    clicked: dict[int, float], capsys: pytest.CaptureFixture[str]
) -> None:
    run("training.steps=3", "data.join.path=store")
    Path("ids.txt").write_text("".join(f"user {number}\n" for number in range(40)))
    words = ["erase", "user", "--keys=ids.txt", "--everywhere=run.yaml", "--yes", "-oreceipt.json"]
    assert main([*words, "data.join.path=store", "--json"]) == 0
    places = [each["place"] for each in json.loads(capsys.readouterr().out)["remains"]]
    expected = (
        r"open impressions \(.*run/open_impressions\)",
        r"working files of a killed run with data.join \(store\)",
        r"training data \(impressions, clicks\)",
    )
    for pattern in expected:
        assert any(re.fullmatch(pattern, place) for place in places), (pattern, places)
    opened = newest().state(JOIN).values["ranks"][0]["counts"]["open"]
    result = run("snapshots.resume=true", "data.join.path=store")
    assert result.skipped["events_erased"] >= opened > 0


def test_a_partition_that_waits_for_others_is_not_idle(clicked: dict[int, float]) -> None:
    # Clicks are few, so each read of them covers more time than one of impressions.
    words = ("data.batch_size=25", "data.join.watermark_seconds=4")
    expected = run(*words).extra["join"]
    assert run(*words, "data.join.idle_seconds=1e-6", "snapshots.url=b").extra["join"] == expected


def test_late_labels_become_examples(clicked: dict[int, float]) -> None:
    dropped = run().extra["join"]
    assert dropped["dropped"] > 0
    assert dropped["corrected"] == 0
    corrected = run("data.join.late=correct", "snapshots.url=second").extra["join"]
    # Some actions wait for their impression when the stream ends.
    assert 0 <= corrected["corrected"] - dropped["dropped"] < 3
    assert corrected["joined"] == dropped["joined"]
    words = ("data.join.late=correct", "data.join.late_weight=2", "snapshots.url=third")
    assert run(*words, "metrics.path=metrics.jsonl").extra["join"] == corrected
    stream = json.loads(Path("metrics.jsonl").read_text().splitlines()[-1])["stream"]
    assert corrected.items() <= stream["join"].items()
    assert stream["join"]["watermark_lag_seconds"] > 0
    families = {each.name: each.samples for each in stream_families(stream, {"rank": "0"})}
    assert families["sparring_stream_join_open"][0].value == corrected["open"]
    assert families["sparring_stream_join_joined_total"][0].value == corrected["joined"]
    late = families["sparring_stream_join_late_total"]
    assert {each.labels["result"]: each.value for each in late} == {
        name: corrected[name] for name in ("corrected", "unchanged", "dropped")
    }


def test_another_number_of_ranks_continues_a_join(clicked: dict[int, float], runs: Runs) -> None:
    own = "model={kind: matrix_factorization, dim: 3}"
    words = (own, "data.numeric=[]", "data.required=[user, item]", "snapshots.resume=true")
    one = runs._run(CONFIG, (*words, "snapshots.url=alone"))[0].end.extra["join"]
    runs.ranks(*words, "training.steps=3", text=CONFIG)
    saved = newest().state(JOIN).values["ranks"]
    assert all(each["counts"]["open"] for each in saved)
    runs._run(CONFIG, (*words, "training.steps=5"))
    runs.ranks(*words, text=CONFIG)
    counts = [each["counts"] for each in newest().state(JOIN).values["ranks"]]
    assert {name: sum(each[name] for each in counts) for name in one} == one
    assert {cut.world_size for cut in read_cuts("run")} == {1, 2}


@pytest.mark.long
@pytest.mark.parametrize("storage", ["memory", "rocksdb"])
def test_open_impressions_survive_kills(clicked: dict[int, float], storage: str) -> None:
    if storage == "rocksdb":
        pytest.importorskip("sparring_rocksdb", reason='pip install "sparring[rocksdb]"')
    words = [f"data.join.storage={storage}", "data.join.path=store", "snapshots.every_steps=1"]
    command = [sys.executable, "-m", "sparring", "train", "run.yaml", *words]
    for number in (2, 5, 7):
        with subprocess.Popen([*command, "--resume"], stderr=subprocess.PIPE) as process:
            end = time.monotonic() + 60
            while not Path(f"run/step-{number:012d}").exists():
                assert time.monotonic() < end, "the run does not continue"
                time.sleep(0.01)
            process.kill()
    result = run(*words, "snapshots.resume=true")
    whole = run("snapshots.url=whole", *words)
    assert result.resumed_steps >= 7
    assert result.extra["join"] == whole.extra["join"]
    assert main(["replay", "run.yaml", *words]) == 0


def test_wrong_streams_are_rejected(clicked: dict[int, float]) -> None:
    one = WritableFolder(Path("one"), ["0"], is_numbered=True)
    one.append("0", [1])
    with pytest.raises(DataError, match=r"actions.clicks: one has 1 partitions, expected 2"):
        run("data.join.actions.clicks.url=one")
    with pytest.raises(DataError, match=r"partition clicks:0, offset 0: column 'order' is missing"):
        run("data.join.actions.clicks.key=[order]")
    with pytest.raises(PluginError, match=r"acme.*installed: memory"):
        run("data.join.storage=acme")
    with pytest.raises(DataError, match=r"no sample.*add later events, which end windows"):
        run("data.join.window_seconds=900")
    run("training.steps=2")
    [state] = Path("run/step-000000000002").glob("*join*")
    content = state.read_bytes()
    state.write_bytes(content[::-1])
    StateFiles("run").remove_unused([])  # It cannot know which files are used.
    state.write_bytes(content)
    name = next(Path("run/open_impressions").iterdir()).name
    Path("run/open_impressions", name).write_bytes(b"damaged")
    with pytest.raises(DataError, match=f"{name} is damaged"):
        run("snapshots.resume=true")
    Path("run/open_impressions", name).unlink()
    with pytest.raises(DataError, match=f"restore the file open_impressions/{name}"):
        run("snapshots.resume=true")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.label=null", "data.label: is required by data.join (found null"),
        (
            "data.numeric=[shown]",
            "has a key that is a label, a list, a number or a time (found shown",
        ),
        ("data.join.key=[shown, shown]", "has a key with equal columns (found shown, shown"),
        (
            "data.join.actions.clicks.label=at",
            "uses a column twice in clicks (found impression, at, at",
        ),
        ("data.join.actions.clicks.key=[a, b]", "another number of key columns in clicks (found 2"),
    ],
)
def test_settings_that_contradict_each_other_are_rejected(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(CONFIG, [override])
    assert message in str(caught.value)
