"""`sparring replay` trains the recorded cuts of a run again, with identical bits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="writes Parquet")
pytest.importorskip("sparring_torch", reason='pip install "sparring[torch]"')

from pyarrow import parquet

from sparring import hash_strings, open_snapshot, scan_rows
from sparring.contracts import NUM_PARTITIONS
from sparring_cli.application import main
from sparring_train.data.stream.cut_log import read_cuts

from .stream_runs import CONFIG, NUM_EVENTS, Events


def test_a_replay_is_identical(events: Events, capsys: pytest.CaptureFixture[str]) -> None:
    url = events.write_folder(partitions=2)
    # Steps of any size, as in a run that waits for events.
    events.run(url, "run", "data.batch_size=50", "snapshots.every_steps=3", "training.steps=5")
    events.run(url, "run", "snapshots.resume=true", "snapshots.every_steps=3", "snapshots.keep=4")
    config = events.folder / "run.yaml"
    config.write_text(CONFIG)
    words = ["data.kind=stream", f"data.url={url}", f"snapshots.url={events.folder / 'run'}"]
    assert main(["replay", str(config), *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["start_step"], found["events"], found["differences"]) == (0, NUM_EVENTS, [])
    assert main(["replay", str(config), *words, "--start=5", "--until=6"]) == 0
    assert "steps 6 to 6: identical to" in capsys.readouterr().out
    # A replay detects other events, and other parameters.
    assert main(["replay", str(config), *words, "model.top_mlp=[9]", "--start=5"]) == 2
    assert main(["replay", str(config), *words, "optimizer.sparse.lr=0.5", "--json"]) == 1
    assert "table user" in json.loads(capsys.readouterr().out)["differences"]
    parquet.write_table(events.train.slice(0, 90), events.folder / "events/1/0.parquet")
    assert main(["replay", str(config), *words]) == 1
    assert main(["replay", str(config), *words, "--until=99"]) == 2
    assert "expected the steps 1 to 99" in capsys.readouterr().err


def test_a_replay_leaves_out_events_with_erased_ids(
    events: Events, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(events.folder)
    users = events.train["user"].to_pylist()
    # The last step has only events near the ends of the partitions.
    erased = next(each for each in users if each not in users[180:200] + users[380:])
    url = events.write_folder(partitions=2)
    letters = "data.dead_letters=letters"
    words = ["data.kind=stream", f"data.url={url}", f"snapshots.url={events.folder / 'run'}"]
    events.run(url, "run", "snapshots.every_steps=2", "data.bad_rows=skip", letters)
    Path("run.yaml").write_text(CONFIG)
    Path("ids.txt").write_text(erased)
    Path("letters").mkdir()
    Path("letters/rank-0.jsonl").write_text(f'{{"payload": "{erased}"}}')
    erase = ["erase", "user", "--keys=ids.txt", "--everywhere=run.yaml", "--yes", "-oreceipt.json"]
    assert main([*erase, *words, "data.bad_rows=skip", letters]) == 0
    receipt = json.loads(Path("receipt.json").read_text())
    found = {Path(each["path"]).name: each["num_ids"] for each in receipt["files"]}
    assert found["rank-0.jsonl"] == 1
    assert sum(found.values()) == 1
    places = [each["place"] for each in receipt["remains"]]
    assert "dead letters (letters)" in places
    assert f"training data ({url})" in places
    assert any(each.endswith(".erased.json") for each in places)
    capsys.readouterr()
    assert main(["replay", "run.yaml", *words, "--output=again", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["events_erased"], replayed["differences"]) == (users.count(erased), None)
    again = open_snapshot("again/step-000000000007")
    keys = np.concatenate([each.keys for each in scan_rows(again, "user", range(NUM_PARTITIONS))])
    assert set(keys.tolist()) == set(hash_strings(sorted({*users} - {erased})).tolist())
    assert main(["replay", "run.yaml", *words]) == 0
    told = f"did not train {users.count(erased)} events with erased ids, so"
    assert told in capsys.readouterr().out
    # If the steps have no event with an erased id, the result is compared.
    assert main(["replay", "run.yaml", *words, "--start=6", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["events_erased"], replayed["differences"]) == (0, [])
    next(Path("run/cuts").glob("*.erased.json")).write_text("{}")
    assert main(["replay", "run.yaml", *words]) == 2
    assert "reading the erased keys of the run" in capsys.readouterr().err


def test_blame_names_the_offsets_or_the_epochs_of_a_change(
    events: Events, capsys: pytest.CaptureFixture[str]
) -> None:
    history = ("snapshots.every_steps=2", "snapshots.full_every=3", "snapshots.history.versions=9")
    url = events.write_folder(partitions=2)
    events.run(url, "run", *history, "training.steps=5")
    # Steps 5 and later are trained again, in cuts of another size.
    shutil.rmtree(events.folder / "run/step-000000000005")
    events.run(url, "run", *history, "snapshots.resume=true", "data.batch_size=30")
    root = str(events.folder / "run")
    cuts = read_cuts(root)
    assert [each.step for each in cuts] == [*range(1, len(cuts) + 1)]
    for wanted in ([(5, 7)], [(2, 3), (6, 9)], [(90, 99)]):
        expected = [cut for cut in cuts if any(a <= cut.step < b for a, b in wanted)]
        assert read_cuts(root, wanted) == expected
    user = events.train["user"][0].as_py()
    assert main(["blame", root, "user", user, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["changes"]
    assert len(found) > 2
    assert found[0]["change"] == "found"
    users = events.train["user"].to_pylist()
    half = NUM_EVENTS // 2
    for each in found[1:]:
        ranges = {
            part: [
                min(one.begin for one in of_part if one.num_events),
                max(one.end for one in of_part if one.num_events),
            ]
            for part in ("0", "1")
            if (of_part := [
                one
                for cut in cuts[each["since_step"] : each["step"]]
                for one in cut.ranges
                if one.partition == part and one.num_events
            ])
        }  # fmt: skip
        assert each["cuts"] == ranges
        mine = [
            users[int(part) * half + at] for part, (a, b) in ranges.items() for at in range(a, b)
        ]
        assert user in mine  # An event of the user is in the offsets.
    events.run("", "files", *history, "training.epochs=2")
    assert main(["blame", str(events.folder / "files"), "user", user]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"epoch 1 of {events.folder / 'log.parquet'}" in lines[2]
    assert f"epoch 2 of {events.folder / 'log.parquet'}" in lines[-1]
