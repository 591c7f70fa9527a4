"""``python benchmarks/gpu/run_everything.py``: all that needs a GPU, without nox and without a network.

Builds core, sparring-hkv (with nvcc) and sparring-torch into an environment beside the one that runs
this, which lends it PyTorch and whatever else it has; runs the kit, the tests, compute-sanitizer and
the benchmarks on the GPU; and says what it did not run, and why. What did not run is a failure, unless
the machine has no GPU at all and `--allow-no-gpu` is given.

    python benchmarks/gpu/run_everything.py                      everything
    python benchmarks/gpu/run_everything.py --list               what that is
    python benchmarks/gpu/run_everything.py --only tests kit     some of it
    python benchmarks/gpu/run_everything.py --wheels FOLDER      what is missing comes from there
    python benchmarks/gpu/run_everything.py --budget 600         no stage goes on after 600 seconds

What has to be there: nvcc, a C++ compiler, and the packages of `NEEDED` with what they need; `--wheels`
names a folder of wheels of those that are not. Nothing is ever fetched.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Distributions that the packages need to be built, to run and to be tested. What these need has to be
# there too, but for what torch needs, which comes with it.
NEEDED = (
    "torch", "numpy", "scikit-build-core", "pybind11", "hatchling", "cmake", "ninja", "tbb", "tbb-devel",
    "pluggy", "pydantic", "ruamel.yaml", "fsspec", "ml_dtypes", "rich", "typer", "xxhash", "pytest",
    "hypothesis",
)  # fmt: skip
COMPLETE = ("torch",)
PACKAGES = ("core", "cli", "backend-hkv", "framework-torch")

KIT = ("packages/backend-hkv/tests/test_device_conformance.py",)
SEQUENCES = ("packages/backend-hkv/tests/test_device_sequences.py",)
TESTS = (
    "packages/backend-hkv/tests/test_device_kernels.py",
    "packages/backend-hkv/tests/test_device_table.py",
    "packages/backend-hkv/tests/test_device_streams.py",
    "packages/framework-torch/tests/test_parity.py",
    "packages/framework-torch/tests/test_embedding_modules.py",
    "packages/framework-torch/tests/test_embedding_bag_collection.py",
    "packages/framework-torch/tests/test_optimizers.py",
    "packages/framework-torch/tests/test_device_policies.py",
    "packages/framework-torch/tests/test_device_stacks.py",
    "packages/framework-torch/tests/test_device_staged_ranks.py",
    "packages/framework-torch/tests/test_device_tiers.py",
    "packages/train/tests/pytorch/test_device_training.py",
    "packages/framework-torch/tests/test_gpu_streams.py",
    "packages/framework-torch/tests/test_device_memory.py",
)
# For a sanitizer, under which kernels are hundreds of times slower. Tests of these files carry the
# name of their device; those of the kit and of sequences read it from the environment.
CHECKED = (
    "packages/backend-hkv/tests/test_device_kernels.py",
    "packages/backend-hkv/tests/test_device_table.py",
)
CHECKS = {
    "memcheck": "accesses out of bounds",
    "synccheck": "lanes that do not meet where they should",
    "initcheck": "reads of memory that was never written",
}
# torch's kernels are its own business, and so are its questions to CUDA that are refused.
OURS = ("--report-api-errors", "no", "--kernel-name", "regex:kns=sparring")
# Where NVIDIA's toolkit puts its programs, also where nobody put them on the path.
TOOLKIT = "/usr/local/cuda/bin"


@dataclass(frozen=True, slots=True)
class Stage:
    """One thing to run."""

    name: str
    what: str
    """For people, in a few words."""
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    needs_gpu: bool = True
    limit_seconds: float = 1800
    is_check: bool = False
    """Runs under compute-sanitizer."""


def stages(device: str) -> list[Stage]:
    """All that is run after building, in order, for the device ``cuda``, ``cuda:1``, …"""
    on_device = (("SPARRING_TEST_DEVICE", device),)
    chosen = "-k", device.replace(":", " and ")
    pytest = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    few = (*on_device, ("SPARRING_OPERATIONS", "60"))
    return [
        Stage(
            "quick", "some rows in, out and erased, launch by launch",
            ("python", "-m", "benchmarks.gpu.quick", device), (("CUDA_LAUNCH_BLOCKING", "1"),),
            limit_seconds=300,
        ),
        Stage("kit", "the conformance kit for storages", (*pytest, *KIT), on_device),
        Stage(
            "tests", "tests of kernels, tables, streams, tiers, training, modules, ranks on one GPU",
            (*pytest, *TESTS, *chosen), on_device,
        ),
        Stage(
            "sequences", "100,000 random calls, beside the table on the CPU",
            (*pytest, *SEQUENCES), (*on_device, ("SPARRING_OPERATIONS", "100000")),
        ),
        *(
            Stage(
                f"{check} of {what}",
                f"compute-sanitizer's {check} over {what}: {CHECKS[check]}",
                (
                    "compute-sanitizer", "--tool", check, "--error-exitcode", "1",
                    "--target-processes", "all", *OURS, *pytest, *files,
                ),
                few,
                is_check=True,
            )
            for check in CHECKS
            for what, files in (
                ("arrays", (*CHECKED, *chosen)),
                ("the kit", (*KIT, *SEQUENCES, "-k", "not large and not million")),
            )
        ),
        Stage("benchmarks", "speeds, beside what they should reach", ("python", "-m", "benchmarks.gpu")),
    ]  # fmt: skip


def with_libraries() -> dict[str, str]:
    """This environment, and where the one that lends has oneTBB's library, if it has it."""
    libraries = [f"{sys.prefix}/lib", os.environ.get("LD_LIBRARY_PATH", "")]
    return dict(os.environ) | {"LD_LIBRARY_PATH": ":".join(filter(None, libraries))}


class Run:
    """Runs stages, and remembers what came of each."""

    def __init__(self, python: str, output: Path | None, budget: float = float("inf")) -> None:
        self._python = python
        self._output = output
        self._end = time.monotonic() + budget
        self.outcomes: list[tuple[str, str]] = []
        self._not_run: dict[str, list[str]] = {}  # reason -> stages

    @property
    def has_failed(self) -> bool:
        return any(outcome.startswith("FAILED") for _, outcome in self.outcomes)

    @property
    def has_skipped(self) -> bool:
        return bool(self._not_run)

    def skip(self, name: str, reason: str) -> None:
        """Says that something is not run."""
        self._not_run.setdefault(reason, []).append(name)

    def run(self, stage: Stage) -> bool:
        """Runs one; returns whether it went well."""
        program = stage.command[0]
        # Commands of the environment that was made, as cmake and ninja, go first.
        path = f"{Path(self._python).parent}:{os.environ['PATH']}:{TOOLKIT}"
        if program != "python" and shutil.which(program, path=path) is None:
            self.skip(stage.name, f"{program} is neither on the path nor in {TOOLKIT}")
            return False
        limit = min(stage.limit_seconds, self._end - time.monotonic())
        if limit <= 0:
            self.skip(stage.name, "the seconds of --budget are over")
            return False
        print(f"\n=== {stage.name}: {stage.what}", flush=True)
        command = [self._python if word == "python" else word for word in stage.command]
        environment = with_libraries() | dict(stage.variables) | {"PYTHONPATH": str(ROOT)}
        environment["PATH"] = path
        begin = time.monotonic()
        try:
            code = self._run(stage.name, command, environment, limit)
        except subprocess.TimeoutExpired:
            self.outcomes.append((stage.name, f"FAILED: not done in {limit:.0f} s"))
            return False
        seconds = time.monotonic() - begin
        outcome = "passed" if code == 0 else f"FAILED with code {code}"
        self.outcomes.append((stage.name, f"{outcome} in {seconds:.0f} s"))
        return code == 0

    def _run(self, name: str, command: list[str], environment: dict[str, str], limit: float) -> int:
        if self._output is None:
            return subprocess.run(
                command, cwd=ROOT, env=environment, timeout=limit, check=False
            ).returncode
        with (self._output / f"{name}.log").open("w") as log:
            ran = subprocess.run(
                command, cwd=ROOT, env=environment, timeout=limit, check=False, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
        for line in Path(log.name).read_text(errors="replace").splitlines()[-15:]:
            print(line)
        return ran.returncode

    def summary(self) -> str:
        """One line for each stage that ran, one for each reason for which others did not."""
        width = max((len(name) for name, _ in self.outcomes), default=0)
        lines = [f"{name:{width}}  {outcome}" for name, outcome in self.outcomes]
        for reason, names in self._not_run.items():
            lines.append(f"not run: {', '.join(names)}\n  because {reason}")
        return "\n".join(lines)


def missing_packages(needed: Sequence[str] = NEEDED) -> list[str]:
    """Names of distributions that are not here, and are needed by those of `needed` or by theirs.

    What a missing one needs besides is not known before it is there.
    """
    missing, seen, left = [], set(), list(needed)
    while left:
        name = re.sub("[-_.]+", "-", left.pop(0)).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if name not in COMPLETE:
            left += [each for each in map(_required_here, found.requires or ()) if each]
    return missing


def _required_here(line: str) -> str | None:
    """The name in a line of ``Requires-Dist``; None where its condition does not hold here."""
    name, _, condition = line.partition(";")
    if condition:
        try:
            from packaging.markers import Marker
        except ModuleNotFoundError:
            return "packaging"
        if not Marker(condition).evaluate({"extra": ""}):
            return None
    found = re.match(r"[\w.-]+", name.strip())
    return found and found[0]


def make_environment(folder: Path, wheels: Path | None) -> str:
    """An environment that also has what this one has. Returns its Python."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        (own,) = folder.glob("lib/python3*/site-packages")
        lent = [*site.getsitepackages(), site.getusersitepackages()]
        (own / "lent.pth").write_text("\n".join(each for each in lent if Path(each).is_dir()))
    missing = missing_packages()
    if missing and wheels is not None:
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
             *map(str, sorted(wheels.glob("*.whl")))],
            check=True,
        )  # fmt: skip
    elif missing:
        print(f"missing here: {', '.join(missing)}; give their wheels by --wheels FOLDER")
    return str(python)


def build_stages(folder: Path) -> list[Stage]:
    """Builds of the packages, core first."""
    settings = {
        "backend-hkv": (
            "--config-settings=cmake.define.SPARRING_HKV_EMULATED=ON",
            # For the GPU at hand alone: a third of the time.
            "--config-settings=cmake.define.CMAKE_CUDA_ARCHITECTURES=native",
        )
    }
    pip = ("python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
    return [
        Stage(
            f"build {package}",
            f"packages/{package}, from source",
            (
                *pip, "--no-build-isolation", "--force-reinstall", *settings.get(package, ()),
                f"--config-settings=build-dir={folder / 'build' / package}",
                str(ROOT / "packages" / package),
            )
            if (ROOT / "packages" / package / "CMakeLists.txt").exists()
            else (*pip, "--no-build-isolation", "--force-reinstall", str(ROOT / "packages" / package)),
            needs_gpu=False,
        )
        for package in PACKAGES
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Found:
    """What there is to run on."""

    has_gpu: bool
    reason: str
    """Why nothing can run on it; empty if things can."""
    has_failed: bool = False
    """The question itself failed: nothing is known."""


# Either of them is there where a GPU is, in containers too.
DRIVER_FILES = (Path("/dev/nvidia0"), Path("/proc/driver/nvidia"))


def find_gpu(python: str) -> Found:
    """Whether there is a GPU, and whether the packages of an environment can use it."""
    program = """
from sparring_cli import inspect_gpus
reason = inspect_gpus().reason
print(reason is None)
if reason is None:
    from sparring_hkv.devices import why_cuda_is_unavailable
    reason = why_cuda_is_unavailable()
if reason is None:
    import torch
    reason = "" if torch.cuda.is_available() else "this PyTorch cannot use the GPU"
print(reason)
"""
    ran = subprocess.run(
        [python, "-c", program], capture_output=True, text=True, check=False, env=with_libraries()
    )
    answer, _, reason = ran.stdout.partition("\n")
    has_gpu = answer == "True" or any(file.exists() for file in DRIVER_FILES)
    if ran.returncode:
        reason = (ran.stderr.strip().splitlines() or ["nothing was said"])[-1]
    return Found(has_gpu, reason.strip(), ran.returncode != 0)


def why_unchecked(python: str) -> str:
    """Why compute-sanitizer cannot look at the GPU, as in some virtual machines; empty if it can."""
    path = f"{os.environ['PATH']}:{TOOLKIT}"
    program = shutil.which("compute-sanitizer", path=path)
    if program is None:
        return f"compute-sanitizer is neither on the path nor in {TOOLKIT}"
    code = "import torch; torch.zeros(8, device='cuda').add_(1).cpu()"
    try:
        ran = subprocess.run(
            [program, "--error-exitcode", "1", *OURS, python, "-c", code],
            capture_output=True, text=True, check=False, timeout=300, env=with_libraries(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "compute-sanitizer did not come to an end over one kernel of torch"
    if ran.returncode == 0:
        return ""
    said = (ran.stdout + ran.stderr).strip().splitlines() or ["nothing was said"]
    return f"compute-sanitizer fails over one kernel of torch: {said[-1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="of the list that --list prints")
    parser.add_argument("--list", action="store_true", help="print the stages and run nothing")
    parser.add_argument("--wheels", type=Path, help="a folder of wheels of what is missing")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu", help="to build in")
    parser.add_argument("--no-build", action="store_true", help="everything is installed here")
    parser.add_argument(
        "--budget", type=float, default=float("inf"), metavar="SECONDS", help="for all of it"
    )
    parser.add_argument(
        "--allow-no-gpu", action="store_true", help="a machine without a GPU is no failure"
    )
    parser.add_argument("--output", type=Path, help="a folder for one log of each stage")
    asked = parser.parse_args(arguments)
    wanted = stages(asked.device)
    if asked.list:
        width = max(len(stage.name) for stage in wanted)
        print("\n".join(f"{stage.name:{width}}  {stage.what}" for stage in wanted))
        return 0
    if asked.only:
        unknown = set(asked.only) - {stage.name for stage in wanted}
        if unknown:
            parser.error(f"no such stage: {', '.join(sorted(unknown))}; see --list")
        wanted = [stage for stage in wanted if stage.name in asked.only]
    if asked.output is not None:
        asked.output.mkdir(parents=True, exist_ok=True)
    python = sys.executable
    if not asked.no_build:
        python = make_environment(asked.folder.resolve() / "venv", asked.wheels)
    run = Run(python, asked.output, asked.budget)
    is_built = asked.no_build or all(map(run.run, build_stages(asked.folder.resolve())))
    found = find_gpu(python) if is_built else Found(False, "the build failed", True)
    if is_built and found.has_failed:
        run.outcomes.append(("looking for a GPU", f"FAILED: {found.reason}"))
    unchecked = ""
    if not found.reason and any(stage.is_check for stage in wanted):
        unchecked = why_unchecked(python)
    for stage in wanted:
        reason = (stage.needs_gpu and found.reason) or (stage.is_check and unchecked)
        if reason:
            run.skip(stage.name, reason)
        else:
            run.run(stage)
    print(f"\n{run.summary()}")
    if run.has_failed or found.has_failed:
        return 1
    if run.has_skipped and not (asked.allow_no_gpu and not found.has_gpu):
        there_is = (
            "a GPU, and not everything ran on it" if found.has_gpu else "no GPU, and nothing ran"
        )
        print(f"\nFAILED: there is {there_is}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
