"""Session for engines that the tests of other sessions do not install: Ray, Lance and Slurm."""

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

TESTS = (
    "packages/engine-ray/tests",
    "packages/plan/tests/test_slurm.py",
    "packages/train/tests/data/lake",
)


@nox.session
def engines(session: nox.Session) -> None:
    """Tests Ray, Lance and Slurm. As root, installs Slurm. Arguments choose tests."""
    session.install(TORCH, RAY, LANCE, "pytest", "hypothesis", silent=True)
    made = ("cli", "testing", "plan", "storage-tiered", "backend-hkv", "packed", "serve")
    install_family(session, *made, "framework-torch", "train", "engine-ray")
    if shutil.which("slurmctld") is None and not apt_install(session, SLURM):
        session.warn(f"tests of Slurm are skipped; to run them: sudo apt install {' '.join(SLURM)}")
    session.run("pytest", *(session.posargs or TESTS))
    if not session.posargs:
        session.run("pytest", "tests/test_documents.py", "-k", "run-on-ray")
