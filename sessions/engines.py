"""Session for engines that other sessions do not install: Ray, Lance, Slurm, Spark, Polars, DuckDB."""

from __future__ import annotations

import shutil

import nox
from sessions.environments import TORCH, apt_install, install_family

# 200 MB with its requirements.
RAY = "ray[data,train]==2.60.0"

# 220 MB.
LANCE = "pylance==14.0.2"

# A controller, a node and their authentication on one machine.
SLURM = ("munge", "slurm-wlm")

# The first two are Python packages, and Spark also needs Java.
FRAMES = ("polars==2.1.0", "duckdb==2.0.1", "pyspark[sql]==4.3.0", "pandas<3")
JAVA = ("openjdk-17-jre-headless",)

TESTS = (
    "packages/engine-ray/tests",
    "packages/engine-spark/tests",
    "packages/plan/tests/test_slurm.py",
    "packages/train/tests/data/lake",
    "tests/test_ids_of_engines.py",
)


@nox.session
def engines(session: nox.Session) -> None:
    """Tests all engines. As root, installs Slurm and Java. Arguments choose tests."""
    session.install(TORCH, RAY, LANCE, *FRAMES, "pytest", "hypothesis", silent=True)
    made = ("cli", "testing", "plan", "storage-tiered", "backend-hkv", "packed", "serve")
    install_family(session, *made, "framework-torch", "train", "engine-ray", "engine-spark")
    if shutil.which("java") is None and not apt_install(session, JAVA):
        session.warn(f"tests of Spark are skipped; to run them: sudo apt install {JAVA[0]}")
    if shutil.which("slurmctld") is None and not apt_install(session, SLURM):
        session.warn(f"tests of Slurm are skipped; to run them: sudo apt install {' '.join(SLURM)}")
    # The test of Slurm takes minutes and is marked `long`, because Slurm may be installed elsewhere, too.
    session.run("pytest", "-m", "long or not long", *(session.posargs or TESTS))
    if not session.posargs:
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
