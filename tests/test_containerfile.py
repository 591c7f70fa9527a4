"""Tests that the Containerfile builds what manifests run; `nox -s container` runs its steps."""

from __future__ import annotations

import re
from pathlib import Path

from .manifests import manifests, pod_of

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "Containerfile").read_text()
SESSIONS = (ROOT / "sessions/environments.py").read_text()


def test_packages_of_the_image_equal_this_checkout() -> None:
    (named,) = re.findall(r"for each in (.*?);", TEXT)
    packages = {path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")}
    # TensorFlow and JAX have separate images; the kits and templates are for developers.
    # The image has no mpiexec, because pods start their ranks with torchrun.
    templates = {"_template", "_template_collective", "_template_kinds"}
    without = {
        "framework-tf",
        "framework-jax",
        "collective-mpi",
        "engine-ray",
        "engine-spark",
        "testing",
        *templates,
    }
    assert {"core", *named.split()} == packages - without


def test_build_tools_and_torch_equal_development() -> None:
    (tools,) = re.findall(r"^BUILD_TOOLS = \((.*)\)$", SESSIONS, re.M)
    for each in re.findall(r'"(.*?)"', tools):
        assert f'"{each}"' in TEXT
    (torch,) = re.findall(r'^TORCH = "(.*)"$', SESSIONS, re.M)
    assert f'"{torch}"' in TEXT


def test_the_image_contains_the_native_server_and_its_libraries() -> None:
    build, _, image = TEXT.partition("FROM ${BASE_IMAGE}")
    for each in re.findall(r'^    "/usr/.*": "(.*)",$', SESSIONS, re.M):
        assert f" {each} " in build
    assert re.search(r" libgrpc\+\+1\.\d+ ", image)
    assert "sparring_serve/bin/sparring-serve-native --check" in image


def test_the_user_and_the_folder_equal_those_of_the_pods() -> None:
    (user,) = re.findall(r"^USER (.*)$", TEXT, re.M)
    (folder,) = re.findall(r"^WORKDIR (.*)$", TEXT.rpartition("FROM")[2], re.M)
    version = re.findall(
        r'^version = "(.*)"', (ROOT / "packages/core/pyproject.toml").read_text(), re.M
    )
    image = f"registry.example/sparring:{version[0]}"
    assert f"--tag {image} " in TEXT
    checked = 0
    for manifest in manifests():
        pod = pod_of(manifest.body)
        if pod is None or pod["spec"]["containers"][0]["image"] != image:
            continue
        context = pod["spec"]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user
        # Without a working directory, a pod starts in the folder of the image.
        assert pod["spec"]["containers"][0].get("workingDir", folder) == folder
        checked += 1
    assert checked >= 5
