"""Measures the first minute of a user: from wheels to a trained model of a CSV, then serving.

    python tools/first_minute.py [--wheels DIST] [--csv RATINGS] [--torch REQUIREMENT] [--limit SECONDS]

Creates a new environment in a temporary folder and installs PyTorch, which users have already. Then it
runs the commands of a user, and prints the time of each. Packages of sparring are installed only from
the folder of wheels, their requirements from the index of pip. With `--limit`, it fails if the trained
model and its report take longer.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sessions.wheel_files import choose_wheels

ROOT = Path(__file__).resolve().parents[1]
NUM_ROWS = 100_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--csv", type=Path, help="columns userId, movieId, rating; default: random")
    parser.add_argument("--torch", default="torch", help="requirement of PyTorch")
    parser.add_argument("--limit", type=float, help="maximum seconds to the trained model")
    given = parser.parse_args()
    wheels = given.wheels.resolve()
    if not any(wheels.glob("sparring-*.whl")):
        parser.error(f"{wheels} contains no wheel of sparring; run: nox -s build")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        ratings = given.csv.resolve() if given.csv else write_ratings(work / "ratings.csv")
        environment = Path(folder, "environment")
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        minute = Minute(environment, work, wheels)
        minute.run(f"pip install --quiet {given.torch}")
        print(f"{given.torch} is installed; now the first minute of a user begins", flush=True)
        minute.lap("install", minute.install("torch,hkv,report"))
        minute.lap("train, with report", f"sparring train {ratings} label=rating")
        total = sum(minute.laps.values())
        print(f"{total:6.1f} s to the trained model with its report", flush=True)
        report = work / "report.html"
        if "<svg" not in report.read_text():
            raise SystemExit(f"{report} contains no figure")
        (work / "readme.py").write_text(example_of_readme())
        minute.lap("the example of the README", "python readme.py")
        minute.lap("recommend", "sparring recommend run --user 1 -k 5")
        minute.lap("install serving", minute.install("serve"))
        minute.lap("publish", "sparring publish run --output served")
        minute.serve_and_look_up()
    if given.limit is not None and total > given.limit:
        print(f"expected at most {given.limit:g} s to the trained model", file=sys.stderr)
        return 1
    return 0


def write_ratings(path: Path) -> Path:
    """Writes random ratings that depend on the user and the item, and returns the path."""
    chance = random.Random(1)
    bias = [[chance.gauss(0, 0.5) for _ in range(count)] for count in (600, 9000)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["userId", "movieId", "rating"])
        for _ in range(NUM_ROWS):
            user, item = chance.randrange(600), int(9000 * chance.random() ** 3)
            rating = 3.5 + bias[0][user] + bias[1][item] + chance.gauss(0, 0.5)
            writer.writerow([user, item, min(5, max(0.5, round(2 * rating) / 2))])
    return path


def example_of_readme() -> str:
    """Returns the first block of Python in the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert found is not None
    return found[1]


class Minute:
    """Commands of a user in a new environment, and their times."""

    def __init__(self, environment: Path, work: Path, wheels: Path) -> None:
        # Without variables that would show the packages of another environment.
        self._env = {name: value for name, value in os.environ.items() if "PYTHON" not in name}
        self._env["PATH"] = f"{environment / 'bin'}{os.pathsep}{self._env['PATH']}"
        self._work = work
        self._wheels = wheels
        self.laps: dict[str, float] = {}

    def install(self, extras: str) -> str:
        version = "{}.{}".format(*sys.version_info)
        chosen = choose_wheels(self._wheels, f"sparring[{extras}]", version)
        return f"pip install --quiet {shlex.join(chosen)}"

    def run(self, command: str) -> str:
        """Runs a command. Returns what it printed; if it fails, prints this and exits."""
        done = subprocess.run(
            command, shell=True, cwd=self._work, env=self._env, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{done.stdout}\nfailed: {command}")
        return done.stdout

    def lap(self, name: str, command: str) -> str:
        """Runs a command and prints its time."""
        begin = time.monotonic()
        printed = self.run(command)
        self.laps[name] = time.monotonic() - begin
        print(f"{self.laps[name]:6.1f} s {name}: {command}", flush=True)
        return printed

    def serve_and_look_up(self) -> None:
        """Starts a server, looks up a row as soon as it replies, and stops it."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = self._work / "serving.yaml"
        config.write_text(f"snapshots: served\nshards: [['127.0.0.1:{port}']]\n")
        begin = time.monotonic()
        command = ["sparring", "serve", "serving.yaml"]
        with (self._work / "serve.log").open("w+") as log:
            server = subprocess.Popen(
                command, cwd=self._work, env=self._env, stderr=log, stdout=log
            )
            try:
                while True:
                    try:
                        socket.create_connection(("127.0.0.1", port), 1).close()
                        break
                    except OSError:
                        if server.poll() is not None or time.monotonic() - begin > 120:
                            log.seek(0)
                            raise SystemExit(f"{log.read()}\nthe server did not start") from None
                        time.sleep(0.05)
                print(f"{time.monotonic() - begin:6.1f} s start the server", flush=True)
                print(self.lap("lookup", f"sparring lookup 127.0.0.1:{port} movieId 1"), end="")
            finally:
                server.terminate()
                server.wait()


if __name__ == "__main__":
    sys.exit(main())
