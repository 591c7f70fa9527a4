"""The publisher obeys and changes the gate of a folder of serving snapshots."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparring_packed
from sparring.adapter import open_root
from sparring_cli.application import main
from sparring_serve import LookupClient
from sparring_serve.publishing.gate_file import open_gate
from sparring_serve.publishing.publisher import (
    GateClosedError,
    PublisherOptions,
    close_gate,
    find_merge,
    merge_layers,
    pin,
    publish_newest,
)

from .test_publish_and_serve import KEYS, LONG, Run, serve_here


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.container.close()


def test_pins_select_the_served_version_and_are_kept(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save()
    run.publish(keep=2)
    run.save(KEYS[:9], is_delta=True)
    run.publish(keep=2)
    with serve_here(run) as server, LookupClient(server.address, LONG) as client:
        assert main(["publish", "--pin", "step-002", "--output", run.out]) == 0
        out = capsys.readouterr().out
        assert out == f"{run.out}: pinned; servers use step-002, until --unpin\n"
        for _ in range(3):
            run.save()
            run.publish(keep=2)
            server.refresher.refresh()
            assert client.pull({"item": KEYS}).version.step == 2
        # The pinned version and its base are kept, and those of `keep_steps`.
        names = {each.name for each in Path(run.out).iterdir()}
        assert names == {"gate.json", "step-001", "step-002", "step-004", "step-005"}
        assert main(["publish", "--unpin", "--output", run.out, "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"state": "open", "pin": None}
        assert server.refresher.refresh().is_new
        assert client.pull({"item": KEYS}).version.step == 5
    run.save()
    options = PublisherOptions({}, keep=2, keep_steps=(1, 4, 4))
    published = publish_newest(run.url, run.out, options)
    assert published is not None
    assert published.removed == ("step-002",)
    for wrong in (["--pin", "step-009"], [], [run.url, "--unpin"]):
        assert main(["publish", *wrong, "--output", run.out]) == 2
    told = capsys.readouterr().err
    assert "does not contain the serving snapshot step-009; use one of step-001, step-004" in told
    assert "specify exactly one of the three" in told
    assert main(["publish", "--pin", "step-001", "--output", f"{run.out}-none"]) == 2
    assert "publish a version first" in capsys.readouterr().err


def test_two_publishers_remove_the_same_version(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    place = type(open_root(run.out))
    remove = place.remove

    def remove_twice(self: Any, name: str) -> None:
        remove(self, name)
        remove(self, name)

    monkeypatch.setattr(place, "remove", remove_twice)
    for _ in range(3):
        run.save()
        published = run.publish(keep=2)
    assert published is not None
    assert published.removed == ("step-001",)


def test_nothing_is_published_while_the_gate_is_closed(run: Run) -> None:
    run.save()
    run.publish()
    sparring_packed.write_gate(run.out, sparring_packed.Gate(True, "labels inverted"))
    run.save()
    with pytest.raises(GateClosedError, match=r"closed \(labels inverted\).*publish --unpin"):
        run.publish()
    (Path(run.out) / "gate.json").write_text("damaged")
    assert run.publish() is not None


def test_a_closed_gate_pins_the_last_good_version_until_the_next_publication(run: Run) -> None:
    for _ in range(3):
        run.save()
        run.publish(keep=9)
    gate = close_gate(run.out, "worse", 2)
    assert (gate.is_closed, gate.reason, gate.pin, gate.pinned_by) == (
        True,
        "worse",
        "step-002",
        "gate",
    )
    open_gate(run.out, "3 good windows")
    # The newest version is still the bad one, so it is not served until there is another.
    assert sparring_packed.read_gate(run.out).pin == "step-002"
    run.save()
    assert run.publish() is not None
    opened = sparring_packed.read_gate(run.out)
    assert (opened.is_closed, opened.reason, opened.pin) == (False, "3 good windows", "")
    # The publisher may be killed before it removes the pin, and publishes the version again.
    pinned = replace(opened, pin="step-002", pinned_by="gate")
    for since, pin_left in ((opened.since, ""), (time.time(), "step-002")):
        sparring_packed.write_gate(run.out, replace(pinned, since=since))
        assert run.publish() is None
        assert sparring_packed.read_gate(run.out).pin == pin_left
    assert close_gate(run.out, "worse", None).pin == ""
    # The operator's pin wins.
    pin(run.out, "step-003")
    gate = close_gate(run.out, "again", 2)
    assert (gate.is_closed, gate.pin, gate.pinned_by) == (True, "step-003", "operator")
    open_gate(run.out, "good")
    run.save()
    assert run.publish() is not None
    assert sparring_packed.read_gate(run.out).pin == "step-003"


def test_layers_are_merged_while_deltas_are_published(run: Run) -> None:
    options = PublisherOptions({}, full_every=3, keep=2, max_delta_share=9, merges_separately=True)

    def save_and_publish(*keys: int) -> sparring_packed.ServingManifest:
        run.save(KEYS[list(keys)] if keys else KEYS, is_delta=run.step > 0)
        published = publish_newest(run.url, run.out, options)
        assert published is not None
        return sparring_packed.read_manifest(published.written.url)

    save_and_publish()
    killed = Path(run.out) / ".step-001.0123456789abcdef"  # It was being written.
    killed.mkdir()
    os.utime(killed, (0, 0))
    with serve_here(run) as server, LookupClient(server.address, LONG) as client:
        assert find_merge(run.out, options) is None
        save_and_publish(1)
        save_and_publish(2)
        assert find_merge(run.out, options) == "step-003"
        # Two versions are published while the merged one is written.
        save_and_publish(3)
        merged = merge_layers(run.out, "step-003")
        assert merged.url.endswith("/step-003-002")
        server.refresher.refresh()
        assert client.pull({"item": KEYS}).version.step == 4
        assert find_merge(run.out, options) is None  # The next delta uses the merged one.
        manifest = save_and_publish(4)
        assert manifest.base is not None
        assert manifest.base.name == "step-003-002"
        server.refresher.refresh()
        answer = client.pull({"item": KEYS[:6]})
        assert answer.version.step == 5
        assert answer.rows["item"][:, 0].tolist() == [1, 2, 3, 4, 5, 1]
        for key in range(5, 8):
            save_and_publish(key)
    # The chain before the merged version was removed.
    assert not (Path(run.out) / "step-001").exists()
    assert not killed.exists()

    for _ in range(8):  # Nothing merges.
        manifest = save_and_publish(1)
    full = [each for each in Path(run.out).iterdir() if each.name > "step-003-002"]
    assert any(sparring_packed.read_manifest(each).base is None for each in full)


def test_servers_are_notified_by_the_command(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save()
    run.publish()
    with serve_here(run) as server, LookupClient(server.address, LONG) as client:
        run.save(KEYS[:9], is_delta=True)
        nobody = "127.0.0.1:1"
        words = ["publish", run.url, "--output", run.out]
        assert main([*words, "--notify", server.address, "--notify", nobody]) == 0
        assert client.pull({"item": KEYS}).version.step == 2
        # A long path is printed in several lines.
        printed = " ".join(capsys.readouterr().err.split())
        assert f"{nobody} does not serve" in printed
        assert server.address not in printed
    for wrong in ("9.9.9.9:1", "host"):
        assert main([*words, "--notify", wrong]) == 2
        assert f"client of {wrong}:" in " ".join(capsys.readouterr().err.split())
    assert main([*words, "--insecure"]) == 2
    assert "but no --notify" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("selection", [["--pin", "step-001"], ["--unpin"]])
def test_options_for_publications_are_rejected_with_a_pin(
    selection: list[str], run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save()
    run.publish(keep=2)
    assert main(["publish", *selection, "--output", run.out, "--keep=3", "--watch"]) == 2
    assert "found --keep, --watch with --pin or --unpin" in capsys.readouterr().err
    assert sparring_packed.read_gate(run.out) == sparring_packed.Gate()


def test_a_version_of_a_dropped_step_is_not_pinned(run: Run) -> None:
    for _ in range(3):
        run.save()
        run.publish(keep=9)
    assert close_gate(run.out, "bad", 3).pin == "step-003"
    assert close_gate(run.out, "bad", 3, [range(2, 4)]).pin == "step-001"


def test_the_pin_and_the_gate_are_shown_separately(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save()
    run.publish()
    sparring_packed.write_gate(run.out, sparring_packed.Gate(True, "labels inverted"))
    assert main(["publish", "--pin", "step-001", "--output", run.out]) == 0
    pinned, gate = capsys.readouterr().out.splitlines()
    assert pinned == f"{run.out}: pinned; servers use step-001, until --unpin"
    assert gate.startswith("the gate is closed (labels inverted): nothing is published")
    assert main(["publish", "--unpin", "--output", run.out]) == 0
    pinned, gate = capsys.readouterr().out.splitlines()
    assert pinned == f"{run.out}: no pin; servers use the newest version"
    assert gate == "the gate was closed, and is open now: newer versions are published"
    assert main(["publish", "--unpin", "--output", run.out]) == 0
    assert "the gate" not in capsys.readouterr().out
    assert main(["publish", run.url, "--output", run.out, "--metrics-port", "0"]) == 2
    assert "--metrics-port 0 requires --watch" in capsys.readouterr().err
