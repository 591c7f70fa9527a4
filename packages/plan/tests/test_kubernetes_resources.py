"""`sparring plan kubernetes`: a plan's nodes, ranks and memory as a Job; what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sparring.cli.application import main

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
    """A plan, its inputs, a configuration."""
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
    # Of each rank 10 GiB for tables and 2 GiB for the rest.
    assert pod["resources"] == {
        "requests": {"cpu": "12", "memory": "48Gi"},
        "limits": {"memory": "48Gi"},
    }
    assert "scratch" not in {each["name"] for each in pod["volumeMounts"]}


def test_plan_and_configuration_are_in_the_config_map(files: Files, tmp_path: Path) -> None:
    data = resources(files, tmp_path / "job.yaml")["ConfigMap"]["data"]
    assert data["plan.yaml"] == Path(files[0]).read_text()
    assert data["run.yaml"] == RUN.replace("   \n", "\n")


def test_gpus_and_disks_of_the_topology_are_asked_for(files: Files, tmp_path: Path) -> None:
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
        (("--name", "My_Run"), "--name must be a name of Kubernetes"),
        (("--claim", "a" * 41), "at most 40"),
        (("--image", "no image"), "--image must be the name of a container image"),
        (("snapshots.url=null",), "add snapshots.url=runs/NAME"),
    ],
)
def test_what_kubernetes_or_a_restart_would_not_survive_is_refused(
    files: Files, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "kubernetes", *files, "--image", "x", *options]) != 0
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_plan_for_another_topology_is_refused(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    change(files[1], "nodes: 3", "nodes: 2")
    assert main(["plan", "kubernetes", *files, "--image", "x"]) != 0
    assert "12 ranks" in " ".join(capsys.readouterr().err.split())
