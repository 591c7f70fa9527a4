"""Parses the manifests in ``configs/kubernetes``."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

__all__ = [
    "FOLDER",
    "Manifest",
    "containers_of",
    "filled_secrets",
    "find_manifest",
    "manifests",
    "pod_of",
    "secrets_and_keys",
]

FOLDER = Path(__file__).resolve().parents[1] / "configs/kubernetes"


@dataclass(frozen=True)
class Manifest:
    """One resource of a manifest."""

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
    """Returns all resources, in the order of files and within files."""
    return tuple(
        Manifest(path, body)
        for path in sorted(FOLDER.glob("*.yaml"))
        for body in YAML(typ="safe", pure=True).load_all(path.read_text())
    )


def find_manifest(kind: str, name: str) -> Manifest:
    """Returns the only resource of a kind and name."""
    (found,) = [each for each in manifests() if (each.kind, each.name) == (kind, name)]
    return found


def pod_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the template of the pods that a resource creates, or None if it creates none."""
    template = body.get("spec", {}).get("template")
    if template is None or "replicatedJobs" not in template.get("spec", {}):
        return template  # type: ignore[no-any-return]
    (job,) = template["spec"]["replicatedJobs"]
    return job["template"]["spec"]["template"]  # type: ignore[no-any-return]


def containers_of(body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Returns the name and body of each container that has a command."""
    template = pod_of(body)
    given = (
        []
        if template is None
        else [(each["name"], each) for each in template["spec"]["containers"]]
    )
    if body["kind"] == "TrainJob":
        given.append(("trainer", body["spec"]["trainer"]))
    yield from ((name, each) for name, each in given if "command" in each)


def secrets_and_keys() -> dict[str, set[str]]:
    """Returns the Secrets that manifests or cert-manager create, and their keys."""
    found = {
        each.body["spec"]["secretName"]: {"tls.crt", "tls.key", "ca.crt"}
        for each in manifests()
        if each.kind == "Certificate"
    }
    return found | {
        each.name: set(each.body["stringData"]) for each in manifests() if each.kind == "Secret"
    }


def filled_secrets() -> dict[str, dict[str, str]]:
    """Returns the Secrets of ``secrets.yaml``, filled by the command at its top."""
    text = (FOLDER / "secrets.yaml").read_text()
    (line,) = re.findall(r"^#   (python3 .*) < secrets\.yaml \| kubectl create -f -$", text, re.M)
    _, *arguments = shlex.split(line)
    filled = subprocess.run(
        [sys.executable, *arguments], input=text, capture_output=True, text=True, check=True
    ).stdout
    return {
        body["metadata"]["name"]: dict(body["stringData"])
        for body in YAML(typ="safe", pure=True).load_all(filled)
    }
