"""Session for engines that others do not install: Ray, Lance, Slurm, Spark, Polars, DuckDB, Faiss."""

from __future__ import annotations

import shutil
from pathlib import Path

import nox
from sessions.environments import (
    GIVEN_WHEELS,
    TORCH,
    apt_install,
    install_family,
    install_made,
)

# 200 MB with its requirements.
RAY = "ray[data,train]==2.60.0"

# 220 MB.
LANCE = "pylance==14.0.2"

# An index of Faiss for `recommend`.
FAISS = "faiss-cpu==1.15.1"

# A controller, a node and their authentication on one machine.
SLURM = ("munge", "slurm-wlm")

# The first two are Python packages, and Spark also needs Java.
FRAMES = ("polars==2.1.0", "duckdb==2.0.1", "pyspark[sql]==4.3.0", "pandas<3")
JAVA = ("openjdk-17-jre-headless",)

FAMILY_OF_ENGINES = (
    *("cli", "testing", "plan", "storage-tiered", "backend-hkv", "packed", "serve"),
    *("framework-torch", "train", "engine-ray", "engine-spark"),
)

TESTS = (
    "packages/engine-ray/tests",
    "packages/engine-spark/tests",
    "packages/packed/tests/test_faiss_index.py",
    "packages/plan/tests/test_slurm.py",
    "packages/train/tests/cli/test_recommend_all.py",
    "packages/train/tests/cli/test_saved_models.py::test_an_index_of_faiss_answers_like_the_exact_one",
    "packages/train/tests/data/lake",
    "tests/test_ids_of_engines.py",
)


@nox.session
def engines(session: nox.Session) -> None:
    """Tests all engines. As root, installs Slurm and Java. Arguments choose tests.

    ``--wheels=FOLDER`` installs the packages from there, for example ``.nox/tests/wheels`` of `tests`.
    """
    given = [each for each in session.posargs if each.startswith(GIVEN_WHEELS)]
    chosen = [each for each in session.posargs if each not in given]
    session.install(TORCH, RAY, LANCE, FAISS, *FRAMES, "pytest", "hypothesis", silent=True)
    if given:
        install_made(
            session, Path(given[-1].removeprefix(GIVEN_WHEELS)), "core", *FAMILY_OF_ENGINES
        )
    else:
        install_family(session, *FAMILY_OF_ENGINES)
    if shutil.which("java") is None and not apt_install(session, JAVA):
        session.warn(f"tests of Spark are skipped; to run them: sudo apt install {JAVA[0]}")
    if shutil.which("slurmctld") is None and not apt_install(session, SLURM):
        session.warn(f"tests of Slurm are skipped; to run them: sudo apt install {' '.join(SLURM)}")
    # The test of Slurm takes minutes and is marked `long`, because Slurm may be installed elsewhere, too.
    # These tests wait for up to ten minutes at a time, and pytest.ini ends a run after ten.
    options = ("-m", "long or not long", "-o", "faulthandler_timeout=3600")
    session.run("pytest", *options, *(chosen or TESTS))
    if not chosen:
        session.run("pytest", "tests/test_documents.py", "-k", "run-on-ray")


@nox.session
def trackers(session: nox.Session) -> None:
    """Tests all trackers and OpenTelemetry: reads back what TensorBoard, MLflow and W&B have recorded."""
    # A store of MLflow in SQLite, for which its client does not require the packages.
    session.install(TORCH, "pytest", "sqlalchemy", "alembic", silent=True)
    install_family(
        session,
        *("cli", "testing", "storage-tiered", "packed", "serve", "framework-torch", "train"),
        extras={"train": "[report,tensorboard,mlflow,wandb,otel]"},
    )
    session.run("pytest", "packages/train/tests/trackers", "packages/serve/tests/test_traces.py")
