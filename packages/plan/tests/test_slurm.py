"""`sparring plan slurm` writes scripts, which a real Slurm on this machine runs and queues again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparring_cli.application import main

DEADLINE_SECONDS = 600
MANY_STEPS = 10**6
RUN = f"""
threads: 1
data: {{kind: synthetic_criteo, samples: 1000, test_samples: 100, batch_size: 16, max_ids: 50}}
model: {{kind: dlrm, embedding_dim: 2, bottom_mlp: [2], top_mlp: [2]}}
training: {{epochs: 100000, steps: {MANY_STEPS}}}
snapshots: {{url: snapshots, every_steps: 50, keep: 2}}
"""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
NodeName=one NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4
NodeName=two NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4
PartitionName=all Nodes=one,two Default=YES State=UP
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_a_script_contains_its_options_and_quotes_the_overrides(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "job.sbatch"
    given = ["--nodes=3", "--ranks=4", "--cpus=5", "--name=films", "--option=--time=1:00"]
    assert main(["plan", "slurm", str(run), "seed=a b", *given, "--output", str(path)]) == 0
    text = path.read_text()
    options = text.partition("\n\n")[0].splitlines()
    assert {f"#SBATCH --{each}" for each in ("nodes=3", "cpus-per-task=20", "time=1:00")} <= {
        *options
    }
    assert "--nproc-per-node=4 " in text
    assert f"run=({run} 'seed=a b')\n" in text
    assert subprocess.run(["bash", "-n", path], check=False).returncode == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["snapshots.url=null"], "snapshots.url=runs/NAME"),
        (["--name=a b"], "found 'a b'"),
        (["--option=--time=1\nrm x"], "on one line"),
        (["seed=1\nrm x"], "on one line"),
    ],
)
def test_scripts_that_could_not_resume_or_run_are_rejected(
    run: Path, given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "slurm", str(run), *given]) != 0
    assert message in capsys.readouterr().err


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Starts a controller and two nodes on loopback; yields their folder."""
    missing = [each for each in PROGRAMS if shutil.which(each) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"needs root and the packages munge and slurm-wlm, missing: {missing}")
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    for each in (tmp_path, *tmp_path.parents[:-1]):
        if each.stat().st_mode & 0o077 == 0 and each != Path("/tmp"):
            each.chmod(0o755)  # munge checks the folders of its socket
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for each in (a, b, c):
            each.bind(("127.0.0.1", 0))
        ports = [each.getsockname()[1] for each in (a, b, c)]
    config = folder / "slurm.conf"
    config.write_text(CONFIG.format(host=socket.gethostname(), folder=folder, ports=ports))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    monkeypatch.setenv("SLURM_CONF", str(config))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    files = [
        f"--{name}={folder}/munge.{name.partition('-')[0]}"
        for name in ("pid-file", "log-file", "seed-file")
    ]
    started: list[subprocess.Popen[bytes]] = []
    commands = [
        [
            "munged",
            "--foreground",
            "--force",
            f"--socket={folder}/munge.socket",
            f"--key-file={key}",
            *files,
        ],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-N", "one"],
        ["slurmd", "-D", "-N", "two"],
    ]
    try:
        for at, command in enumerate(commands):
            with (folder / f"{at}.log").open("wb") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log))
            if at == 0:
                wait((folder / "munge.socket").exists, folder / "0.log")
        wait(lambda: ask("sinfo", "-h", "-o", "%T %D") == "idle 2", folder / "1.log")
        yield folder
    finally:
        subprocess.run(["scancel", "--full", "-u", "root"], check=False, timeout=60)
        for each in reversed(started):
            each.terminate()
            each.wait(60)


def wait(is_true: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    while not is_true():
        assert time.monotonic() < end, log.read_text() if log.exists() else f"{log} is missing"
        time.sleep(0.2)


def ask(*command: str) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return ran.stdout.strip()


def processes(run: Path, *, is_launcher: bool) -> list[int]:
    """Returns the ranks of a run, or the processes of torchrun."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        is_rank = words[1:5] == ["-u", "-m", "sparring", "train"]
        if str(run) in words and (words[1].endswith("torchrun") if is_launcher else is_rank):
            found.append(int(path.parent.name))
    return sorted(found)


def start_again(job: str, is_true: Callable[[], bool], log: Path) -> None:
    """Starts a job at once that is queued again, before which Slurm waits for two minutes."""

    def ask_and_check() -> bool:
        # This has no effect before the last start of the job has ended.
        ask("scontrol", "update", f"JobId={job}", "StartTime=now")
        return is_true()

    time.sleep(3)  # a job that starts in the second in which it was queued again has no credential
    wait(ask_and_check, log)


@pytest.mark.long
@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 1)])
def test_a_job_survives_lost_ranks_and_is_queued_again(
    cluster: Path, run: Path, tmp_path: Path, nodes: int, ranks: int
) -> None:
    script, log, snapshots = tmp_path / "job.sbatch", tmp_path / "job.log", tmp_path / "snapshots"
    given = [f"--nodes={nodes}", f"--ranks={ranks}", f"--option=--output={log}"]
    assert main(["plan", "slurm", str(run), *given, "--output", str(script)]) == 0
    number = ask("sbatch", "--parsable", str(script))

    def has_resumed(times: int) -> bool:
        # Ranks listen for SIGTERM only when they train.
        text = log.read_text() if log.exists() else ""
        is_training = f" of {MANY_STEPS:,}" in text.rpartition("resumed from")[2]
        return text.count("resumed from") >= times and is_training

    wait(lambda: any(snapshots.glob("step-*/manifest.json")), log)
    os.kill(processes(run, is_launcher=False)[0], signal.SIGKILL)
    wait(lambda: has_resumed(1), log)
    os.kill(processes(run, is_launcher=True)[0], signal.SIGKILL)
    wait(lambda: "PENDING" in ask("squeue", "-h", "-j", number, "-o", "%T"), log)
    start_again(number, lambda: has_resumed(2), log)
    ask("scancel", "--signal=TERM", number)  # as two minutes before the time limit
    wait(lambda: "stopped by SIGTERM" in log.read_text(), log)
    wait(lambda: "PENDING" in ask("squeue", "-h", "-j", number, "-o", "%T"), log)
    last = 100 + max(int(each.name.removeprefix("step-")) for each in snapshots.glob("step-*"))
    run.write_text(RUN.replace(str(MANY_STEPS), str(last)))
    start_again(number, lambda: "COMPLETED" in ask("scontrol", "show", "job", number), log)
    assert log.read_text().count("resumed from") >= 3
    assert (snapshots / f"step-{last:012d}/manifest.json").exists()
