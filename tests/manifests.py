"""The manifests of ``configs/kubernetes``, parsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

__all__ = ["FOLDER", "Manifest", "containers_of", "manifests", "pod_of", "secret_names"]

FOLDER = Path(__file__).resolve().parents[1] / "configs/kubernetes"


@dataclass(frozen=True)
class Manifest:
    """One resource."""

    path: Path
    body: dict[str, Any]

    @property
    def api(self) -> str:
        return str(self.body["apiVersion"])

    @property
    def kind(self) -> str:
        return str(self.body["kind"])

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])


@cache
def manifests() -> tuple[Manifest, ...]:
    """All of them, in the order of files and in them."""
    return tuple(
        Manifest(path, body)
        for path in sorted(FOLDER.glob("*.yaml"))
        for body in YAML(typ="safe", pure=True).load_all(path.read_text())
    )


def pod_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """The template of the pods that a resource makes; None: it makes none."""
    template = body.get("spec", {}).get("template")
    if template is None or "replicatedJobs" not in template.get("spec", {}):
        return template  # type: ignore[no-any-return]
    (job,) = template["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]  # type: ignore[no-any-return]


def containers_of(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name and body of each container that has a command."""
    template = pod_of(body)
    given = (
        []
        if template is None
        else [(each["name"], each) for each in template["spec"]["containers"]]
    )
    if body["kind"] == "TrainJob":
        given.append(("trainer", body["spec"]["trainer"]))
    yield from ((name, each) for name, each in given if "command" in each)


def secret_names() -> set[str]:
    """Names of the secrets that pods mount."""
    pods = [pod for each in manifests() if (pod := pod_of(each.body)) is not None]
    volumes = [volume for pod in pods for volume in pod["spec"].get("volumes", ())]
    return {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
