"""Sessions that check what users install from the wheels in dist/, and the packages of others in it."""

from __future__ import annotations

import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import nox
from sessions.builds import DIST, find_program
from sessions.bundled import (
    add_components,
    find_sources,
    read_components,
    search_vulnerabilities,
)
from sessions.environments import (
    FAMILY,
    OLDEST_TENSORFLOW_NEEDS,
    PACKAGES,
    ROOT,
    TENSORFLOW_RELEASES,
    TORCH,
    environment,
)
from sessions.wheel_files import choose_wheels


@dataclass(frozen=True, slots=True)
class Cell:
    """Versions that are tested together."""

    python: str
    framework: str
    """Requirement of pip."""
    backend: str

    @property
    def name(self) -> str:
        return f"{self.python}-{self.framework.replace('==', '-')}-{self.backend}"

    @property
    def extras(self) -> str:
        framework = "torch" if self.framework.startswith("torch") else "tensorflow"
        return ",".join([framework, *([] if self.backend == "memory" else [self.backend])])

    @property
    def overrides(self) -> list[str]:
        """Keys of the configuration that select the framework and the backend."""
        framework = "torch" if self.framework.startswith("torch") else "tensorflow"
        path = ["storage.options={path: rows}"] if self.backend == "rocksdb" else []
        return [f"framework={framework}", f"storage.backend={self.backend}", *path]


OLDEST_TORCH = "torch==2.4.1"
OLDEST_TENSORFLOW, NEWEST_TENSORFLOW = (
    f"tensorflow-cpu=={release}" for release in (TENSORFLOW_RELEASES[0], TENSORFLOW_RELEASES[-1])
)

# Each version of Python and of a framework occurs at least twice, with different backends. Redis needs a
# server; the tests of its package use one. The oldest frameworks do not support Python 3.13.
CELLS = (
    Cell("3.10", OLDEST_TORCH, "memory"),
    Cell("3.10", OLDEST_TENSORFLOW, "hkv"),
    Cell("3.11", TORCH, "hkv"),
    Cell("3.11", NEWEST_TENSORFLOW, "rocksdb"),
    Cell("3.12", OLDEST_TORCH, "rocksdb"),
    Cell("3.12", OLDEST_TENSORFLOW, "memory"),
    Cell("3.13", TORCH, "rocksdb"),
    Cell("3.13", NEWEST_TENSORFLOW, "hkv"),
)


@nox.session
def matrix(session: nox.Session) -> None:
    """Installs wheels from dist/ with old and new Python, torch and TensorFlow, and trains on a CSV.

    Runs the cells whose names contain all arguments, for example ``-- 3.12 torch``; all by default.
    PyTorch from PyPI includes CUDA: set PIP_EXTRA_INDEX_URL to an index of builds for CPUs.
    """
    cells = [cell for cell in CELLS if all(each in cell.name for each in session.posargs)]
    if not cells:
        names = ", ".join(cell.name for cell in CELLS)
        session.error(f"matrix: no cell contains {' and '.join(session.posargs)}; cells: {names}")
    results = {}
    for cell in cells:
        results[cell.name] = run_cell(session, cell)
    for name, result in results.items():
        session.log(f"{name}: {result}")
    if set(results.values()) != {"passed"}:
        session.error("some cells did not pass; see above")


def run_cell(session: nox.Session, cell: Cell) -> str:
    """Trains on a small CSV with the versions of a cell, and evaluates the saved model."""
    program = find_program(cell.python)
    if program is None:
        return f"not run: found no interpreter of CPython {cell.python}"
    folder = Path(session.create_tmp()).resolve() / cell.name
    rows = "".join(f"{n % 7},{n % 11},{n % 3 // 2}\n" for n in range(400))
    try:
        wheels = choose_wheels(DIST, f"sparring[{cell.extras}]", cell.python)
        more = (OLDEST_TENSORFLOW_NEEDS,) if cell.framework == OLDEST_TENSORFLOW else ()
        python = environment(session, folder, *wheels, cell.framework, *more, program=program)
        work = folder / "work"
        work.mkdir()
        (work / "clicks.csv").write_text(f"user,item,clicked\n{rows}")
        with session.chdir(work):
            train = ("train", "clicks.csv", "label=clicked", *cell.overrides, "--json")
            session.run(python, "-m", "sparring", *train, external=True)
            session.run(python, "-m", "sparring", "evaluate", "run", "--json", external=True)
    except nox.command.CommandFailed:
        return "failed"
    return "passed"


@nox.session
def first_minute(session: nox.Session) -> None:
    """Measures the time from the wheels in dist/ to a trained model of a CSV, and serves it.

    Arguments are passed to tools/first_minute.py: ``--csv``, ``--torch``, ``--limit``.
    """
    session.run("python", "tools/first_minute.py", "--torch", TORCH, *session.posargs)


# Licenses of required packages that may be used in programs of all kinds, as parts of the texts that
# their metadata contain.
ALLOWED_LICENSES = (
    # Permissive.
    "Apache", "MIT", "BSD", "ISC", "PSF", "Python Software Foundation", "HPND", "Zlib", "CC0", "0BSD",
    # The license of matplotlib, similar to Python's.
    "matplotlib",
    # Changes of its own files must be published; they are not copied or changed here.
    "MPL", "Mozilla Public License 2.0",
)  # fmt: skip

# Packages with another license or none in their metadata, and why they may be used.
INTEL = (
    "the Intel Simplified Software License permits use and redistribution of the unchanged binaries, but "
    "no reverse engineering; no wheel of ours contains them, and a build of oneTBB's sources, which have "
    "the Apache License, can replace them"
)
ALLOWED_PACKAGES = {"tbb": INTEL, "tcmlib": INTEL}

# Vulnerabilities of libraries in wheels that their distribution has not fixed, and why they are accepted.
ACCEPTED_VULNERABILITIES: dict[str, str] = {}

STRICT = "--strict"

# Extras that only tests, GPUs or engines need. Engines are installed with what they require.
NOT_AUDITED = (
    "testing",
    "cuda12",
    "cuda13",
    "ray",
    "spark",
    "lance",
    "tensorflow",
    "tensorflow-cpu",
    "mpich",
    "openmpi",
)


@nox.session
def audit(session: nox.Session) -> None:
    """Checks the licenses of all required packages, searches known vulnerabilities, and writes an SBOM.

    Writes reports/audit/sbom.cdx.json (CycloneDX) and licenses.json. The SBOM also contains libraries in
    the wheels of dist/, such as gRPC. Vulnerabilities are requested from PyPI and OSV; without a
    connection or wheels, the session prints a message instead, or fails with ``-- --strict``.
    """
    if set(session.posargs) - {STRICT}:
        session.error(f"audit: found {' '.join(session.posargs)}, expected nothing or {STRICT}")
    output = ROOT / "reports/audit"
    output.mkdir(parents=True, exist_ok=True)
    session.install("cyclonedx-bom>=7", "pip-licenses>=5", "pip-audit>=2.9", silent=True)
    folder = Path(session.virtualenv.location) / "audited"
    needed = sorted({each for package in ("core", *FAMILY) for each in run_requirements(package)})
    python = environment(session, folder, TORCH, *needed)
    sbom = str(output / "sbom.cdx.json")
    session.run(
        "cyclonedx-py", "environment", "--output-reproducible", "--of", "JSON", "-o", sbom, python
    )
    check_licenses(session, python, output / "licenses.json")
    packages = next(folder.glob("lib/python*/site-packages"))
    check_vulnerabilities(session, packages, output / "vulnerabilities.json")
    check_bundled_libraries(session, Path(sbom))


def check_vulnerabilities(session: nox.Session, packages: Path, output: Path) -> None:
    """Writes the known vulnerabilities of the packages in a folder, and fails if there are any."""
    output.unlink(missing_ok=True)
    command = ("pip-audit", "--path", str(packages), "--format", "json", "--output", str(output))
    printed = session.run(*command, "--progress-spinner", "off", silent=True, success_codes=[0, 1])
    if not output.exists():
        reason = str(printed).strip().splitlines()[-1:]
        message = f"no vulnerabilities were searched, because the request failed: {reason}"
        if STRICT in session.posargs:
            session.error(message)
        session.warn(message)
        return
    audited = json.loads(output.read_text())["dependencies"]
    skipped = [each["skip_reason"] for each in audited if "skip_reason" in each]
    if skipped:
        session.warn(
            f"{len(skipped)} of {len(audited)} packages were not searched: {skipped[0]}, …"
        )
    found = [
        f"{each['name']} {each['version']}: {', '.join(known['id'] for known in each['vulns'])}"
        for each in audited
        if each.get("vulns")
    ]
    for each in found:
        session.warn(each)
    if found:
        session.error("require versions without these vulnerabilities")


def check_bundled_libraries(session: nox.Session, sbom: Path) -> None:
    """Adds the libraries in the wheels of dist/ to the SBOM, and fails if one has a vulnerability."""
    report = session.error if STRICT in session.posargs else session.warn
    components = read_components(DIST.glob("*.whl"))
    if not components:
        report("no library in a wheel was audited: build wheels first with nox -s build")
        return
    add_components(sbom, components)
    for each in components:
        session.log(f"wheels contain {each['name']} {each['version']}")
    try:
        found = search_vulnerabilities(find_sources(components), platform.freedesktop_os_release())
    except (OSError, RuntimeError) as error:
        report(f"no vulnerabilities of libraries in wheels were searched: {error}")
        return
    rejected = [each for each in found if each.rpartition(" ")[2] not in ACCEPTED_VULNERABILITIES]
    for each in rejected:
        session.warn(each)
    if rejected:
        session.error(
            "build wheels with fixed libraries, or give reasons in ACCEPTED_VULNERABILITIES"
        )


def run_requirements(package: str) -> list[str]:
    """Returns the packages of others that users of a package install with it or with an extra."""
    project = nox.project.load_toml(PACKAGES / package / "pyproject.toml")["project"]
    extras = project.get("optional-dependencies", {})
    listed = [
        *project["dependencies"],
        *(each for name in extras if name not in NOT_AUDITED for each in extras[name]),
    ]
    return [each for each in listed if not each.startswith("sparring")]


def is_allowed(text: str) -> bool:
    """Returns whether the license in the metadata of a package is allowed."""
    allowed = "|".join(map(re.escape, ALLOWED_LICENSES))
    return "GPL" not in text and re.search(rf"\b({allowed})\b", text, re.I) is not None


def check_licenses(session: nox.Session, python: str, output: Path) -> None:
    """Writes the licenses of an environment, and fails if one is not allowed."""
    printed = session.run(
        "pip-licenses", f"--python={python}", "--from=mixed", "--format=json", silent=True
    )
    output.write_text(str(printed))
    refused = [
        f"{each['Name']} {each['Version']} has the license {each['License']!r}"
        for each in json.loads(str(printed))
        if each["Name"] not in ALLOWED_PACKAGES and not is_allowed(each["License"])
    ]
    for each in refused:
        session.warn(each)
    if refused:
        session.error("read these licenses, and allow them or the packages with a reason")
