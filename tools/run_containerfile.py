"""Runs the steps of the Containerfile in separate root file systems, if there is no container engine.

    python tools/run_containerfile.py FOLDER [--build-arg NAME=VALUE]... [--mount PATH]...

Requires root and debootstrap, the network, and some 4 GB in FOLDER. Each stage starts with a copy of
Debian's smallest system, like the base image. COPY copies the tracked files of this checkout. Variables
PIP_… are passed on, and each --mount is mounted in the roots too, for package mirrors. At the end the
user of the image trains some steps on two ranks. Unknown instructions raise an error.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE = re.compile(r"(?:docker\.io/library/)?debian:(\w+)-slim")

# Arguments: root, user, working directory, command. Runs as a separate process because of /proc.
ENTER = """
set -e
root=$1; user=$2; directory=$3; command=$4; shift 4
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
for each; do mkdir -p "$root$(dirname "$each")"; \\
    if [ -d "$each" ]; then mkdir -p "$root$each"; else touch "$root$each"; fi; \\
    mount --bind "$each" "$root$each"; done
exec chroot --userspec="$user" "$root" sh -c 'cd "$1" && exec sh -c "$2"' sh "$directory" "$command"
"""


@dataclass
class Stage:
    """A root file system, and the settings for the next instruction of its stage."""

    root: Path
    arguments: dict[str, str]
    environment: dict[str, str] = field(
        default_factory=lambda: {
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        }
    )
    directory: str = "/"
    user: str = "0:0"
    entry: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--mount", action="append", default=[], metavar="PATH")
    given = parser.parse_args()
    chosen = dict(each.split("=", 1) for each in given.build_arg)
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    of_file: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for name, text in instructions((ROOT / "Containerfile").read_text()):
        print(f"{name} {text}", flush=True)
        if name == "ARG":
            key, _, value = text.partition("=")
            (of_file if stage is None else stage.arguments)[key] = chosen.get(key, value)
        elif name == "FROM":
            image, _, alias = text.partition(" AS ")
            root = folder / f"stage-{len(stages)}"
            copy_base(folder, substituted(image, of_file), root)
            stage = stages[alias or "image"] = Stage(root, {})
        elif stage is None:
            raise SystemExit(
                f"Containerfile: found {name} before the first FROM; start with FROM IMAGE"
            )
        elif name == "ENV":
            key, _, value = text.partition("=")
            stage.environment[key] = value
        elif name == "WORKDIR":
            stage.directory = text
            (stage.root / text[1:]).mkdir(parents=True, exist_ok=True)
        elif name == "USER":
            stage.user = text
        elif name == "COPY":
            copy(stage, stages, text)
        elif name == "RUN":
            run(stage, text, given.mount)
        elif name == "ENTRYPOINT":
            stage.entry = [word.strip(' "') for word in text.strip("[]").split(",")]
        else:
            raise SystemExit(f"Containerfile: {name} is not supported; add it to this program")
    image = stages["image"]
    check(image)
    return 0


def check(image: Stage) -> None:
    """Trains some steps on two ranks and publishes them, as the user of the image."""
    shutil.copy(ROOT / "configs/quickstart.yaml", image.root / "tmp/run.yaml")
    (image.root / "tmp/check").mkdir(mode=0o777, exist_ok=True)
    (image.root / "tmp/check").chmod(0o777)
    sparring = shlex.join(image.entry)
    small = "training.steps=4 data.samples=9000 data.test_samples=500 snapshots.url=runs/one"
    for command in (
        f"torchrun --standalone --nproc-per-node 2 -m sparring train /tmp/run.yaml --resume {small}",
        f"{sparring} publish runs/one served/one",
        f"{sparring} --version",
    ):
        run(image, f"cd /tmp/check && HOME=/tmp {command}", [])


def instructions(text: str) -> list[tuple[str, str]]:
    """Yields the name and the text of each instruction."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    found = [line.partition(" ") for line in lines]
    return [(name, rest.strip()) for name, _, rest in found]


def substituted(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], text)


def copy_base(folder: Path, image: str, root: Path) -> None:
    """Creates the root of a stage; the base is cached, because it takes minutes."""
    match = IMAGE.fullmatch(image)
    if match is None:
        raise SystemExit(f"FROM {image}: only Debian's slim images are supported")
    base = folder / f"base-{match[1]}"
    if not (base / "made").exists():
        shutil.rmtree(base, ignore_errors=True)
        subprocess.run(["debootstrap", "--variant=minbase", match[1], base], check=True)
        (base / "made").touch()
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(["cp", "-a", base, root], check=True)
    for each in ("etc/resolv.conf", "etc/hosts"):
        shutil.copy(f"/{each}", root / each)


def copy(stage: Stage, stages: dict[str, Stage], text: str) -> None:
    words = text.split()
    if words[0].startswith("--from="):
        alias, source, target = words[0].removeprefix("--from="), words[1], words[2]
        shutil.copytree(stages[alias].root / source[1:], stage.root / target[1:])
        return
    source, target = words
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", source], capture_output=True, text=True, check=True
    )
    into = stage.root / stage.directory[1:] / target
    for each in listed.stdout.strip("\0").split("\0"):
        file = into / Path(each).relative_to(source)
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / each, file)


def run(stage: Stage, command: str, mounts: list[str]) -> None:
    pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]
    done = subprocess.run(
        [*enter, stage.root, stage.user, stage.directory, command, *mounts],
        env={**pip, **stage.arguments, **stage.environment, "DEBIAN_FRONTEND": "noninteractive"},
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"RUN {command}: exit code {done.returncode}")


if __name__ == "__main__":
    sys.exit(main())
