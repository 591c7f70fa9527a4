"""A run on a stream publishes versions of its rows and parameters while it trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sparring_torch", reason="needs sparring-torch")
pytest.importorskip("sparring_packed.library", reason="needs sparring-packed")
pytest.importorskip("sparring_serve", reason="needs sparring-serve")

import sparring_packed
from sparring import open_snapshot, scan_rows
from sparring_cli.application import main
from sparring_serve import ServingConfig, open_server
from sparring_train.live import publisher_process
from sparring_train.run.served_model import torch_parameters

from .stream_runs import CONFIG, Events


def versions(folder: Path) -> list[Path]:
    return sorted(each.parent for each in folder.glob("step-*/manifest.json"))


def check_same_bits(served: Path, snapshots: Path) -> None:
    """Raises unless a version has the rows and the parameters of its snapshot."""
    manifest = sparring_packed.read_manifest(served)
    snapshot = open_snapshot(snapshots / manifest.source.name)
    assert (manifest.source.hash, manifest.step) == (snapshot.manifest_hash, snapshot.step)
    with sparring_packed.open(served) as tables:
        for name in snapshot.tables:
            for chunk in scan_rows(snapshot, name):
                expected = snapshot.tables[name].config.embeddings(chunk.rows)
                assert np.array_equal(tables.lookup(name, chunk.keys), expected), name
    arrays, _ = sparring_packed.decode_parameters((served / "parameters.safetensors").read_bytes())
    for name, array in torch_parameters(snapshot.state("torch")).items():
        assert arrays[name].tobytes() == array.tobytes(), name


def test_a_stream_is_published_served_and_resumed(
    events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    served, runs = tmp_path / "served", tmp_path / "run"
    (tmp_path / "live.yaml").write_text(CONFIG)
    words = [
        *events.words(events.write_folder(), "run"), "publish.url=served",
        "publish.every_seconds=1e-6", "snapshots.full_every=20", "snapshots.keep=9",
        "metrics.path=metrics.jsonl", "publish.max_delta_share=100",
    ]  # fmt: skip
    # Each event is one second later than the one before it.
    assert main(["train", "live.yaml", *words, "training.steps=1"]) == 0
    [first] = versions(served)
    check_same_bits(first, runs)
    server = open_server(
        ServingConfig.model_validate({"snapshots": str(served), "server": {"poll_seconds": 3600}}),
        address="127.0.0.1:0",
    )
    try:
        notify = f"publish.notify=['{server.address}']"
        assert main(["train", "live.yaml", *words, notify, "--resume"]) == 0
        newest = versions(served)[-1]
        check_same_bits(newest, runs)
        manifest = sparring_packed.read_manifest(newest)
        assert manifest.base is not None
        assert (manifest.step, server.service.tables.versions()[0].step) == (7, 7)
    finally:
        server.close()
    told = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["publishing"]
    assert told["publications"]["published"] >= 1
    assert told["publications"]["failed"] == told["num_not_notified"] == 0
    assert all(seconds > 0 for seconds in told["publish_seconds"].values())
    assert 0 < told["age_seconds"] < 3600

    before = versions(served)
    assert main(["replay", "live.yaml", *words]) == 0
    assert versions(served) == before


@pytest.mark.long
@pytest.mark.parametrize("world_size", [1, 2])
def test_killed_runs_continue_to_publish(events: Events, tmp_path: Path, world_size: int) -> None:
    served, runs = tmp_path / "served", tmp_path / "run"
    (tmp_path / "live.yaml").write_text(CONFIG)
    words = [
        *events.words(events.write_folder(2), "run"), f"publish.url={served}",
        "publish.every_seconds=1e-6", "snapshots.full_every=20", "data.batch_size=8",
    ]  # fmt: skip
    command = [sys.executable, "-m", "sparring", "train", str(tmp_path / "live.yaml"), *words]
    if world_size > 1:
        command[1:2] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 60
    while len(versions(served)) < 2 and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for each in versions(served)[-1:]:
        check_same_bits(each, runs)
    subprocess.run([*command, "--resume"], check=True)
    newest = versions(served)[-1]
    assert sparring_packed.read_manifest(newest).step == 50
    check_same_bits(newest, runs)


def test_training_continues_if_the_publisher_ends(
    events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ending(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *_: Any, **options: Any) -> None:
            super().__init__([sys.executable, "-c", "input(); input()"], **options)

    monkeypatch.setattr(publisher_process.subprocess, "Popen", Ending)
    config = events.config(
        events.write_folder(),
        "run",
        f"publish.url={tmp_path / 'served'}",
        "publish.every_seconds=1e-6",
    )
    from sparring import make_plugin_manager
    from sparring_train.pytorch.trainer import train

    from .stream_runs import Quiet

    progress = Quiet()
    assert train(config, make_plugin_manager(), progress).steps == 7
    assert any(
        "the process that publishes has ended twice (exit status 0)" in each
        for each in progress.messages
    )
    assert not [each for each in threading.enumerate() if each.name == "sparring-publisher"]
