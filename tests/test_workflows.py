"""The workflows of GitHub run existing sessions, with few permissions; the wheels cover all versions."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = re.compile(r"[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}")

# Jobs that need more than reading the repository.
MAY_WRITE = {
    ("docs", "publish"): {"pages", "id-token"},
    ("release", "publish"): {"id-token", "attestations"},
}


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_jobs_may_only_read_except_those_that_publish(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        writes = {scope for scope, what in job.get("permissions", {}).items() if what == "write"}
        assert writes == MAY_WRITE.get((path.stem, name), set()), name
        assert "uses" in job or "timeout-minutes" in job, name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_a_commit(path: Path) -> None:
    jobs = read(path)["jobs"].values()
    used = [step["uses"] for job in jobs for step in job.get("steps", ()) if "uses" in step]
    assert [each for each in used if not PINNED.fullmatch(each)] == []


def test_workflows_run_sessions_that_exist() -> None:
    files = (ROOT / "noxfile.py", *(ROOT / "sessions").glob("*.py"))
    known = re.findall(r"^def (\w+)\(session", "".join(each.read_text() for each in files), re.M)
    run = {name for path in WORKFLOWS for name in re.findall(r"nox -s (\w+)", path.read_text())} | {
        choice.split()[0]
        for path in WORKFLOWS
        for job in read(path)["jobs"].values()
        for name in ("session", "command")
        for choice in job.get("strategy", {}).get("matrix", {}).get(name, ())
    }
    assert {"tests", "tests_long", "lint", "docs", "build", "matrix", "audit"} <= run
    assert run <= set(known)


@pytest.fixture
def wheel_files(import_program: Any) -> Any:
    """The module of the session that builds wheels."""
    return import_program("sessions.wheel_files")


def test_wheels_are_built_and_tested_for_all_versions(wheel_files: Any) -> None:
    tags = re.findall(r"cp(3)(\d+)-\*", (ROOT / "cibuildwheel.toml").read_text())
    assert tuple(".".join(each) for each in tags) == wheel_files.PYTHONS
    smoke = read(ROOT / ".github/workflows/wheels.yml")["jobs"]["smoke"]
    assert tuple(smoke["strategy"]["matrix"]["python"]) == wheel_files.PYTHONS


def test_wheels_are_chosen_with_all_packages_that_they_require(
    tmp_path: Path, wheel_files: Any
) -> None:
    core = "sparring-0.1.0-cp311-cp311-linux_x86_64.whl"
    cli = "sparring_cli-0.1.0-py3-none-any.whl"
    needs = {
        core: ["numpy", "sparring-cli[a]<1,>=0.1; extra == 'cli'", "sparring-x; extra == 'x'"],
        core.replace("311", "312"): ["sparring-none"],
        cli: ["sparring<1,>=0.1", "sparring[cli]; extra == 'a'"],
    }
    for name, lines in needs.items():
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            text = "".join(f"Requires-Dist: {each}\n" for each in lines)
            wheel.writestr("sparring.dist-info/METADATA", text)
    chosen = wheel_files.choose_wheels(tmp_path, "sparring[cli]", "3.11")
    assert chosen == [f"{tmp_path}/{each}" for each in (core, f"{core}[cli]", cli, f"{cli}[a]")]
    with pytest.raises(FileNotFoundError, match="no wheel of sparring-x for CPython"):
        wheel_files.choose_wheels(tmp_path, "sparring[x]", "3.11")
    assert wheel_files.constrain(tmp_path, "/host").splitlines()[::2] == [
        f'sparring @ file:///host{tmp_path}/{core} ; python_version == "3.11"',
        f"sparring_cli @ file:///host{tmp_path}/{cli}",
    ]


def test_wheels_that_differ_or_contain_paths_are_reported(tmp_path: Path, wheel_files: Any) -> None:
    name = "sparring-0.1.0-cp311-cp311-manylinux_2_34_x86_64.manylinux_2_28_x86_64.whl"
    for folder, text in (("one", "a"), ("two", "/home/me/x.cc")):
        (tmp_path / folder).mkdir()
        with zipfile.ZipFile(tmp_path / folder / name, "w") as wheel:
            wheel.writestr("sparring/same.py", "")
            wheel.writestr("sparring/other.py", text)
    one, two = (tmp_path / folder / name for folder in ("one", "two"))
    assert wheel_files.describe_differences(one, one.parent) == []
    (message,) = wheel_files.describe_differences(one, two.parent)
    assert message.endswith("differ in sparring/other.py")
    assert wheel_files.find_paths(one, ["/home/me"]) == []
    (message,) = wheel_files.find_paths(two, ["/home/me"])
    assert "sparring/other.py contains the path /home/me" in message
    assert wheel_files.describe_platform(one) == "glibc 2.28 or newer"


@pytest.mark.parametrize(("launcher", "is_kept"), [("", True), ("sh", True), ("no-ccache", False)])
def test_a_build_folder_whose_compiler_cache_was_uninstalled_is_deleted(
    tmp_path: Path, import_program: Any, launcher: str, is_kept: bool
) -> None:
    build_folders = import_program("sessions.build_folders")
    made = tmp_path / "made"
    assert build_folders.reuse_folder(made) == made
    made.mkdir()
    lines = f"CMAKE_BUILD_TYPE:STRING=Release\nCMAKE_CXX_COMPILER_LAUNCHER:STRING={launcher}\n"
    (made / "CMakeCache.txt").write_text(lines)
    assert build_folders.reuse_folder(made).exists() == is_kept


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="needs Debian's package manager")
def test_libraries_in_wheels_are_part_of_the_sbom_and_of_the_audit(
    tmp_path: Path, import_program: Any
) -> None:
    bundled = import_program("sessions.bundled")
    command = ["dpkg-query", "-W", "-f", bundled.FORMAT, "libc-bin"]
    version, source, number = subprocess.check_output(command, text=True).split("\t")
    library = {"name": "libc-bin", "version": version, "purl": f"pkg:deb/debian/libc-bin@{version}"}
    wheel = {"name": "sparring_serve", "version": "0.1.0", "purl": "pkg:pypi/sparring_serve@0.1.0"}
    for name in ("a.whl", "b.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as made:
            content = json.dumps({"components": [wheel, library]})
            made.writestr("x.dist-info/sboms/auditwheel.cdx.json", content)
    components = bundled.read_components(tmp_path.glob("*.whl"))
    assert [each["name"] for each in components] == ["libc-bin"]
    assert bundled.find_sources(components) == [(source, number)]
    sbom = tmp_path / "sbom.json"
    sbom.write_text('{"components": [{"name": "numpy"}]}')
    bundled.add_components(sbom, components)
    assert [each["name"] for each in json.loads(sbom.read_text())["components"]] == [
        "numpy",
        "libc-bin",
    ]
    with pytest.raises(RuntimeError, match="the wheels contain libc-bin 0"):
        bundled.find_sources([{**library, "version": "0"}])

    asked = []

    class Database(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"results": [{"vulns": [{"id": "CVE-1"}, {"id": "CVE-2"}]}, {}]}')

        def log_message(self, *_: object) -> None:
            """Prints nothing."""

    with HTTPServer(("127.0.0.1", 0), Database) as server:
        Thread(target=server.handle_request, daemon=True).start()
        found = bundled.search_vulnerabilities(
            [("grpc", "1.51.1-3"), ("openssl", "3.0.17-1")],
            {"ID": "debian", "VERSION_ID": "12"},
            f"http://127.0.0.1:{server.server_port}",
        )
    assert found == ["grpc 1.51.1-3: CVE-1", "grpc 1.51.1-3: CVE-2"]
    package = {"name": "grpc", "ecosystem": "Debian:12"}
    assert asked[0]["queries"][0] == {"package": package, "version": "1.51.1-3"}
