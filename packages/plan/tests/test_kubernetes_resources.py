"""`sparring plan kubernetes` writes plans as Jobs and serving snapshots as servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ruamel.yaml import YAML

from sparring import SaveOptions, StepContainer, StorageChoice, TableConfig
from sparring_cli.application import main
from sparring_plan.kubernetes.serving import compute_served_bytes

INPUTS = """
topology:
  nodes: 3
  ranks_per_node: 4
  memory: {host: 10 GiB}
samples: 64
storages: [hkv]
tables:
  users: {dim: 32, method: adam, features: {user: {ids: 1}}, rows: 1000}
"""
RUN = "snapshots: {url: runs/one}   \nseed: 1\n"

Files = tuple[str, str, str]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """Files of a plan, its inputs and a configuration."""
    plan, inputs, run = (tmp_path / name for name in ("plan.yaml", "inputs.yaml", "run.yaml"))
    inputs.write_text(INPUTS)
    run.write_text(RUN)
    assert main(["plan", "make", str(inputs), "--output", str(plan)]) == 0
    return str(plan), str(inputs), str(run)


Resources = dict[str, dict[str, Any]]


def resources(files: Files, path: Path, *options: str) -> Resources:
    given = ["--image", "registry.example/x:1", *options, "--output", str(path)]
    assert main(["plan", "kubernetes", *files, *given]) == 0
    return {each["kind"]: each for each in YAML(typ="safe", pure=True).load_all(path.read_text())}


def change(path: str, before: str, after: str) -> None:
    text = Path(path).read_text()
    assert before in text
    Path(path).write_text(text.replace(before, after))


def container(made: Resources) -> dict[str, Any]:
    (found,) = made["Job"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_a_node_of_the_plan_is_a_pod_with_its_ranks(files: Files, tmp_path: Path) -> None:
    made = resources(files, tmp_path / "job.yaml", "--name", "films", "--cpus", "3")
    assert made["Job"]["spec"]["completions"] == made["Job"]["spec"]["parallelism"] == 3
    pod = container(made)
    assert {"--nnodes=3", "--nproc-per-node=4", "--rdzv-endpoint=films-0.films:29500"} <= set(
        pod["args"]
    )
    assert {each["metadata"]["name"] for each in made.values()} == {"films"}
    assert made["Job"]["spec"]["template"]["spec"]["subdomain"] == "films"
    # For each rank 10 GiB for tables and 2 GiB for the rest.
    assert pod["resources"] == {
        "requests": {"cpu": "12", "memory": "48Gi"},
        "limits": {"memory": "48Gi"},
    }
    assert "scratch" not in {each["name"] for each in pod["volumeMounts"]}


def test_plan_and_configuration_are_in_the_config_map(files: Files, tmp_path: Path) -> None:
    data = resources(files, tmp_path / "job.yaml")["ConfigMap"]["data"]
    assert data["plan.yaml"] == Path(files[0]).read_text()
    assert data["run.yaml"] == RUN.replace("   \n", "\n")


def test_gpus_and_disks_of_the_topology_are_requested(files: Files, tmp_path: Path) -> None:
    change(files[1], "host: 10 GiB", "host: 10 GiB, gpu: 40 GiB, disk: 100 GiB")
    made = resources(files, tmp_path / "job.yaml")
    assert container(made)["resources"]["limits"]["nvidia.com/gpu"] == 4
    volumes = {each["name"]: each for each in made["Job"]["spec"]["template"]["spec"]["volumes"]}
    claim = volumes["scratch"]["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["resources"]["requests"]["storage"] == "400Gi"
    assert "/scratch" in {each["mountPath"] for each in container(made)["volumeMounts"]}


def test_overrides_reach_the_training(files: Files, tmp_path: Path) -> None:
    change(files[2], "snapshots: {url: runs/one}   \n", "")
    given = ("snapshots.url=s3://bucket/run", 'logging.format="json"')
    args = container(resources((*files, *given), tmp_path / "job.yaml"))["args"]  # type: ignore[arg-type]
    assert tuple(args[-2:]) == given


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--name", "My_Run"), "--name must be a Kubernetes name"),
        (("--claim", "a" * 41), "at most 40"),
        (("--image", "no image"), "--image must be the name of a container image"),
        (("snapshots.url=null",), "add snapshots.url=runs/NAME"),
    ],
)
def test_settings_that_kubernetes_or_a_restart_would_lose_are_rejected(
    files: Files, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "kubernetes", *files, "--image", "x", *options]) != 0
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_plan_for_another_topology_is_rejected(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    change(files[1], "nodes: 3", "nodes: 2")
    assert main(["plan", "kubernetes", *files, "--image", "x"]) != 0
    assert "12 ranks" in " ".join(capsys.readouterr().err.split())


# -- serving ----------------------------------------------------------------------------


def published(folder: Path, *, with_delta: bool = False) -> int:
    """Writes a serving snapshot, and a delta over it; returns the bytes of their files."""
    packed = pytest.importorskip("sparring_packed", reason="sparring-packed is not installed")
    with StepContainer() as container:
        container.declare(TableConfig("item", 8), StorageChoice("memory"))
        container.assign("item", np.arange(5000), np.ones((5000, 8), np.float32))
        base = str(folder / "run/step-1")
        container.save(base, options=SaveOptions(is_base=True))
        packed.write(base, folder / "served/step-1")
        if with_delta:
            container.assign("item", np.arange(10), np.zeros((10, 8), np.float32))
            container.save(str(folder / "run/step-2"), base=base)
            packed.write(
                folder / "run/step-2", folder / "served/step-2", base=folder / "served/step-1"
            )
    return sum(
        each.stat().st_size
        for each in (folder / "served").rglob("*")
        if each.is_file() and each.name != "manifest.json"
    )


def test_the_newest_generation_determines_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(tmp_path)
    packed = pytest.importorskip("sparring_packed", reason="sparring-packed is not installed")
    with StepContainer() as container:
        container.declare(TableConfig("item", 8), StorageChoice("memory"))
        container.save(str(tmp_path / "other"))
    options = packed.WriteOptions(generation=1)
    packed.write(tmp_path / "other", tmp_path / "served/a", options=options)
    files = packed.read_manifest(tmp_path / "served/a").files
    monkeypatch.chdir(tmp_path)
    assert compute_served_bytes("served") == sum(each.size_bytes for each in files)


def served(*arguments: str, path: Path) -> list[dict[str, Any]]:
    assert main(["plan", "kubernetes", *arguments, "--image", "x:1", "--output", str(path)]) == 0
    return list(YAML(typ="safe", pure=True).load_all(path.read_text()))


MIB = 1 << 20


@pytest.mark.parametrize("with_delta", [False, True])
def test_a_server_requests_memory_for_its_share_of_the_snapshot_twice(
    tmp_path: Path, with_delta: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = published(tmp_path, with_delta=with_delta)
    monkeypatch.chdir(tmp_path)
    assert compute_served_bytes("served") == size
    made = served("served", "--shards", "2", "--replicas", "3", path=tmp_path / "a.yaml")
    sets = [each for each in made if each["kind"] == "StatefulSet"]
    assert [each["metadata"]["name"] for each in sets] == ["serve-a", "serve-b", "serve-c"]
    needed = 512 + -(-2 * -(-size // 2) // MIB)
    for number, each in enumerate(sets, 1):
        (pod,) = each["spec"]["template"]["spec"]["containers"]
        assert pod["resources"]["requests"] == {"cpu": "1", "memory": f"{needed}Mi"}
        assert pod["resources"]["limits"] == {"memory": f"{needed}Mi"}
        assert {"--shard=$(SHARD)/2", f"--replica={number}"} <= set(pod["args"])
        assert each["spec"]["replicas"] == 2


def test_a_service_of_a_bucket_has_names_space_for_copies_and_the_given_settings(
    tmp_path: Path,
) -> None:
    options = ("--bytes", "40GiB", "--shards", "4", "--name", "films", "--cpus", "8")
    made = served("s3://films/served", "server.threads=8", *options, path=tmp_path / "a.yaml")
    assert {each["metadata"]["name"] for each in made} == {"films", "films-a", "films-b"}
    (config,) = [each["data"]["serving.yaml"] for each in made if each["kind"] == "ConfigMap"]
    read = YAML(typ="safe", pure=True).load(config)
    assert read["snapshots"] == "s3://films/served"
    assert read["server"]["cache"].startswith("/tmp/")
    assert read["shards"][3] == ["films-a-4.films:7433", "films-b-4.films:7433"]
    (certificate,) = [each for each in made if each["kind"] == "Certificate"]
    assert len(certificate["spec"]["dnsNames"]) == 8
    pod = made[-1]["spec"]["template"]["spec"]["containers"][0]
    assert pod["resources"]["requests"] == {
        "cpu": "8",
        "memory": "20992Mi",
        "ephemeral-storage": "30Gi",
    }
    assert pod["args"][-1] == "server.threads=8"
    assert (
        "sparring plan kubernetes s3://films/served server.threads=8 --image x:1"
        in (tmp_path / "a.yaml").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("nowhere",),
            "found no serving snapshot in nowhere; run sparring publish RUN --output nowhere",
        ),
        (
            ("served", "--bytes", "3x"),
            "--bytes must be a number of bytes, such as 40GiB, found '3x'",
        ),
        (("served", "--bytes", "0"), "found '0'"),
        (("served", "--bytes", "1GiB", "--replicas", "27"), "--replicas must be at most 26"),
        (("a", "b"), "expected PLAN INPUTS RUN to train, or SERVED to serve"),
        (("served", "a=1", "b"), "expected PLAN INPUTS RUN to train, or SERVED to serve"),
        (("a", "b", "c", "--bytes", "1GiB"), "--bytes is only supported for serving"),
    ],
)
def test_wrong_arguments_of_a_service_are_rejected(
    arguments: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "kubernetes", *arguments, "--image", "x"]) != 0
    assert said in " ".join(capsys.readouterr().err.split())
