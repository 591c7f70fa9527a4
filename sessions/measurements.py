"""Sessions that measure: benchmarks, reliability, fuzzing, and everything that needs a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import nox
from sessions.environments import (
    EMULATED,
    FAMILY,
    GIVEN_WHEELS,
    NATS_SERVER,
    PACKAGES,
    ROOT,
    TENSORFLOW,
    TEST_EXTRAS,
    TORCH,
    cached,
    environment,
    find_nvcc,
    gpu_setting,
    install_build_tools,
    install_family,
    install_local,
    install_made,
    install_optional_packages,
    install_programs,
    system_packages,
)

# The peers of the benchmarks, in the only versions that are compatible with this torch.
TORCH_PEERS = ("fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0")

# An independent solver that verifies a bound of the planner.
PULP = "pulp==3.3.2"

# Requirements of torchrec, except fbgemm-gpu, which would overwrite fbgemm-gpu-cpu.
TORCH_PEERS_NEED = ("iopath", "pyre-extensions", "tensordict", "torchmetrics", "tqdm")

# The peer of ranking models, without some of its requirements: old releases of colorama and colorlog, and
# ray and plotly, which its training does not import.
RECBOLE = "recbole==1.2.1"
RECBOLE_NEEDS = (
    "colorama", "colorlog", "pandas", "psutil", "pyyaml", "scikit-learn", "scipy", "tabulate",
    "tensorboard", "texttable", "thop", "tqdm",
)  # fmt: skip

# ALS, the peer of two-tower models.
IMPLICIT = "implicit==0.7.3"

TFRA = ("tensorflow-cpu==2.16.2", "tf_keras==2.16.0", "tensorflow-recommenders-addons==0.8.1")


@nox.session
def benchmarks(session: nox.Session) -> None:
    """Prints the figures of the documentation, ours and our peers' in one run.

    Installs the peers; TFRA is installed in a separate environment. Names after ``--`` choose benchmarks.
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
    """Prints our plans and TorchRec's with TorchRec's costs, and verifies a bound; takes minutes.

    Names after ``--`` choose cases; ``--large`` runs those that take many minutes.
    """
    session.install(TORCH, *TORCH_PEERS_NEED, PULP, "hypothesis", "pytest", silent=True)
    session.install("--no-deps", *TORCH_PEERS, silent=True)
    install_family(session, "cli", "plan", extras=TEST_EXTRAS)
    session.run(
        "pytest", str(PACKAGES / "plan/tests/test_planning_bounds.py"), "-k", "another_solver"
    )
    env = {"PYTHONPATH": str(ROOT)}
    session.run("python", "-m", "benchmarks.planning_torchrec", *session.posargs, env=env)


@nox.session
def benchmarks_tensorflow(session: nox.Session) -> None:
    """Prints the figures of the TensorFlow adapter, with those of keras.layers.Embedding and TFRA."""
    session.install(TENSORFLOW, silent=True)
    made = ("cli", "storage-tiered", "backend-hkv", "framework-tf", "train")
    install_family(session, *made, extras={"train": "[report]"})
    env = {"PYTHONPATH": str(ROOT), "SPARRING_BENCHMARK_TFRA_PYTHON": tfra_python(session)}
    session.run("python", "-m", "benchmarks", "tensorflow_adapter", *session.posargs, env=env)


def tfra_python(session: nox.Session) -> str:
    """Returns the Python of an environment with TFRA, whose TensorFlow conflicts with the others."""
    folder = Path(session.virtualenv.location) / "tfra"
    python = folder / "bin/python"
    return str(python) if python.exists() else environment(session, folder, *TFRA)


@nox.session
def recbole(session: nox.Session) -> None:
    """Prints metrics of ranking models, ours and our peers', on one split; ``-- RATINGS.CSV``.

    Further arguments are passed to `benchmarks.recbole`: ``--seeds 1`` is shorter. Without a file it uses
    ml-latest-small in the folder SPARRING_TEST_DATA; nothing is downloaded.
    """
    words = list(session.posargs)
    data = Path(os.environ.get("SPARRING_TEST_DATA", ROOT.parent / "shared/data"))
    has_file = bool(words) and not words[0].startswith("-")
    ratings = Path(words.pop(0)) if has_file else data / "ml-latest-small/ratings.csv"
    if not ratings.exists():
        session.error(
            f"{ratings} does not exist: download ml-latest-small, 1 MB, from "
            "https://grouplens.org/datasets/movielens/latest/, unpack it, and run "
            "nox -s recbole -- ml-latest-small/ratings.csv"
        )
    session.install(TORCH, IMPLICIT, *RECBOLE_NEEDS, silent=True)
    session.install("--no-deps", RECBOLE, silent=True)
    made = ("cli", "storage-tiered", "backend-hkv", "packed", "framework-torch", "train")
    install_family(session, *made)
    command = ("python", "-m", "benchmarks.recbole", str(ratings.resolve()), *words)
    session.run(*command, env={"PYTHONPATH": str(ROOT)})


@nox.session
def reliability(session: nox.Session) -> None:
    """Injects thousands of real faults, and prints counts; takes some minutes.

    Kills processes, damages files, fills a disk (mounting requires root), makes calls of the C library
    fail, and stops Redis and servers. Names after ``--`` choose trials, ``--trials N`` their number.
    """
    without = ("plan", "framework-tf", "framework-jax")
    session.install(TORCH, silent=True)
    needed = system_packages(session, *(each for each in FAMILY if each not in without))
    install_family(session, *needed)
    install_programs(session)
    session.install("pytest", silent=True)
    session.run("python", "-m", "reliability", *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session
def soak(session: nox.Session) -> None:
    """Runs training, serving and a parameter service under a fault per minute; ``-- --hours 0.5``.

    Requires redis-server, a C compiler, and root or permission to create namespaces. Writes a page with a
    timeline to `reports/soak`; ``--seed N`` chooses the order of the faults. ``--wheels=FOLDER`` installs
    the packages from there.
    """
    given = [each for each in session.posargs if each.startswith(GIVEN_WHEELS)]
    words = [each for each in session.posargs if each not in given]
    session.install(TORCH, NATS_SERVER, "nats-py", "matplotlib", "pytest", silent=True)
    without = ("plan", "framework-tf", "framework-jax", "engine-ray", "engine-spark")
    made = (each for each in FAMILY if each not in without and not each.startswith("collective"))
    packages = system_packages(session, *made)
    if given:
        install_made(session, Path(given[-1].removeprefix(GIVEN_WHEELS)), "core", *packages)
    else:
        install_optional_packages(session)
        install_family(session, *packages)
    install_programs(session)
    session.run("python", "-m", "soak", *words, env={"PYTHONPATH": str(ROOT)})


@nox.session
def dashboards(session: nox.Session) -> None:
    """Runs all queries of the dashboards on a real Prometheus, and draws them; takes three minutes.

    ``-- --output FOLDER`` chooses the folder of the pictures.
    """
    session.install(TORCH, "matplotlib", silent=True)
    made = ("cli", "storage-tiered", "backend-hkv", "packed", "serve", "framework-torch", "train")
    install_family(session, *made, extras={"train": "[metrics]", "serve": "[metrics]"})
    install_programs(session)
    session.run("python", "tools/record_dashboards.py", *session.posargs)


# Sanitizers of clang that the runtime of atheris contains, and the coverage of native code.
FUZZED = "address,undefined,fuzzer-no-link;-fno-sanitize=function,vptr"


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzzes all readers of untrusted bytes under sanitizers, and writes executions and coverage.

    Each target takes 10 minutes of processor time; ``-- MINUTES NAME`` sets another duration, and chooses
    targets. Requires clang, llvm, and libgrpc++-dev.
    """
    session.install("atheris>=3", "coverage", silent=True)
    install_build_tools(session)
    setting = f"--config-settings=cmake.define.SPARRING_SANITIZE={FUZZED}"
    with_clang = {**cached(), "CC": "clang", "CXX": "clang++"}
    core = str(PACKAGES / "core")
    session.install("--no-build-isolation", setting, core, silent=True, env=with_clang)
    for package in ("cli", "plan", "storage-tiered", "packed", "serve", "train"):
        install_local(session, package)
    session.run("python", "-m", "fuzz", *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session
def gpu(session: nox.Session) -> None:
    """Runs the tests, checks and benchmarks that need a GPU; without one, reports what it skipped.

    Requires a GPU with its driver, g++, and compute-sanitizer of NVIDIA's toolkit; nvcc is installed from
    PyPI if necessary. If there is a GPU, it fails if any stage could not run.
    """
    install_family(session, "cli", "testing")
    program = "from sparring_cli import inspect_gpus; print(len(inspect_gpus().devices))"
    num_gpus = int(str(session.run("python", "-c", program, silent=True)).split()[-1])
    if num_gpus > 0:
        session.install(TORCH, silent=True)
        nvcc = find_nvcc(session)
        emulated = f"--config-settings=cmake.define.{EMULATED}=ON"
        install_local(session, "backend-hkv", "", gpu_setting(nvcc), emulated, nvcc=nvcc)
        install_local(session, "framework-torch")
        # Driver files without a usable GPU are a failure.
    has_none = num_gpus == 0 and not any(
        map(os.path.exists, ("/dev/nvidia0", "/proc/driver/nvidia"))
    )
    allowed = ("--allow-no-gpu",) if has_none else ()
    run = ("python", "benchmarks/gpu/run_everything.py", "--no-build", *allowed)
    session.run(*run, *session.posargs)
