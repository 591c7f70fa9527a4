"""``python benchmarks/gpu/run_everything.py``: runs everything that needs a GPU, without nox and network.

Builds core, sparring-hkv (with nvcc) and sparring-torch in a new environment, which also uses PyTorch and
other packages of the environment that runs this. Runs the kit, the tests, compute-sanitizer and the
benchmarks on the GPU, and reports what it did not run, with the reason. A stage that did not run counts
as a failure, unless the machine has no GPU and `--allow-no-gpu` is given.

    python benchmarks/gpu/run_everything.py                      everything
    python benchmarks/gpu/run_everything.py --list               list the stages
    python benchmarks/gpu/run_everything.py --only tests kit     some stages
    python benchmarks/gpu/run_everything.py --wheels FOLDER      missing packages come from there
    python benchmarks/gpu/run_everything.py --budget 600         stops after 600 seconds

Requires nvcc, a C++ compiler, and the packages in `NEEDED` with their dependencies. `--wheels` is a
folder with wheels of missing packages. Nothing is downloaded.
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

# Distributions that are required to build, run and test the packages. Their dependencies are required
# too, except torch's packages, which are installed with it.
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
# Tests for the sanitizers, under which kernels are hundreds of times slower. Tests in these files
# contain the name of their device; the kit and the sequences read it from the environment.
CHECKED = (
    "packages/backend-hkv/tests/test_device_kernels.py",
    "packages/backend-hkv/tests/test_device_table.py",
)
CHECKS = {
    "memcheck": "out-of-bounds accesses",
    "synccheck": "invalid synchronization of lanes",
    "initcheck": "reads of uninitialized memory",
}
# Excludes torch's kernels, and CUDA API errors that torch handles.
OURS = ("--report-api-errors", "no", "--kernel-name", "regex:kns=sparring")
# Folder of the programs of NVIDIA's toolkit, which may not be in PATH.
TOOLKIT = "/usr/local/cuda/bin"


@dataclass(frozen=True, slots=True)
class Stage:
    """One command to run."""

    name: str
    what: str
    """Short description."""
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    needs_gpu: bool = True
    limit_seconds: float = 1800
    is_check: bool = False
    """Whether it runs under compute-sanitizer."""


def stages(device: str) -> list[Stage]:
    """Lists everything to run after the build, in order, for the device ``cuda``, ``cuda:1``, …"""
    on_device = (("SPARRING_TEST_DEVICE", device),)
    chosen = "-k", device.replace(":", " and ")
    pytest = ("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    few = (*on_device, ("SPARRING_OPERATIONS", "60"))
    return [
        Stage(
            "quick", "writes, reads and erases some rows, one launch at a time",
            ("python", "-m", "benchmarks.gpu.quick", device), (("CUDA_LAUNCH_BLOCKING", "1"),),
            limit_seconds=300,
        ),
        Stage("kit", "the conformance kit for storages", (*pytest, *KIT), on_device),
        Stage(
            "tests", "tests of kernels, tables, streams, tiers, training, modules, ranks on one GPU",
            (*pytest, *TESTS, *chosen), on_device,
        ),
        Stage(
            "sequences", "100,000 random calls, compared with the table on the CPU",
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
        Stage("benchmarks", "speed, with limits", ("python", "-m", "benchmarks.gpu")),
    ]  # fmt: skip


def with_libraries() -> dict[str, str]:
    """Returns the environment variables, with the folder of oneTBB's library if there is one."""
    libraries = [f"{sys.prefix}/lib", os.environ.get("LD_LIBRARY_PATH", "")]
    return dict(os.environ) | {"LD_LIBRARY_PATH": ":".join(filter(None, libraries))}


class Run:
    """Runs stages and records the outcomes."""

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
        """Reports that a stage is skipped."""
        self._not_run.setdefault(reason, []).append(name)

    def run(self, stage: Stage) -> bool:
        """Runs a stage; returns whether it succeeded."""
        program = stage.command[0]
        # Programs of the new environment, such as cmake and ninja, take precedence.
        path = f"{Path(self._python).parent}:{os.environ['PATH']}:{TOOLKIT}"
        if program != "python" and shutil.which(program, path=path) is None:
            self.skip(stage.name, f"{program} is neither in PATH nor in {TOOLKIT}")
            return False
        limit = min(stage.limit_seconds, self._end - time.monotonic())
        if limit <= 0:
            self.skip(stage.name, "the time of --budget is used up")
            return False
        print(f"\n=== {stage.name}: {stage.what}", flush=True)
        command = [self._python if word == "python" else word for word in stage.command]
        environment = with_libraries() | dict(stage.variables) | {"PYTHONPATH": str(ROOT)}
        environment["PATH"] = path
        begin = time.monotonic()
        try:
            code = self._run(stage.name, command, environment, limit)
        except subprocess.TimeoutExpired:
            self.outcomes.append((stage.name, f"FAILED: not finished in {limit:.0f} s"))
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
        """Returns a line per stage that ran, and a line per reason for skipped stages."""
        width = max((len(name) for name, _ in self.outcomes), default=0)
        lines = [f"{name:{width}}  {outcome}" for name, outcome in self.outcomes]
        for reason, names in self._not_run.items():
            lines.append(f"not run: {', '.join(names)}\n  because {reason}")
        return "\n".join(lines)


def missing_packages(needed: Sequence[str] = NEEDED) -> list[str]:
    """Lists missing distributions that those in `needed` require, directly or indirectly.

    The requirements of a missing distribution are unknown until it is installed.
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
    """Returns the name in a line of ``Requires-Dist``, or None if its condition is false here."""
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
    """Creates an environment that includes the packages of this one. Returns its Python."""
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
        print(f"missing packages: {', '.join(missing)}; provide their wheels with --wheels FOLDER")
    return str(python)


def build_stages(folder: Path) -> list[Stage]:
    """Lists the stages that build the packages, core first."""
    settings = {
        "backend-hkv": (
            "--config-settings=cmake.define.SPARRING_HKV_EMULATED=ON",
            # Only for the present GPU, which takes a third of the time.
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
    """Result of the search for a GPU."""

    has_gpu: bool
    reason: str
    """Why the GPU cannot be used; empty if it can."""
    has_failed: bool = False
    """Whether the search itself failed, so nothing is known."""


# If there is a GPU, one of them exists, in containers too.
DRIVER_FILES = (Path("/dev/nvidia0"), Path("/proc/driver/nvidia"))


def find_gpu(python: str) -> Found:
    """Finds out whether there is a GPU, and whether the packages of an environment can use it."""
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
    """Returns why compute-sanitizer cannot be used, as in some virtual machines; empty if it can."""
    path = f"{os.environ['PATH']}:{TOOLKIT}"
    program = shutil.which("compute-sanitizer", path=path)
    if program is None:
        return f"compute-sanitizer is neither in PATH nor in {TOOLKIT}"
    code = "import torch; torch.zeros(8, device='cuda').add_(1).cpu()"
    try:
        ran = subprocess.run(
            [program, "--error-exitcode", "1", *OURS, python, "-c", code],
            capture_output=True, text=True, check=False, timeout=300, env=with_libraries(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "compute-sanitizer did not finish on one kernel of torch"
    if ran.returncode == 0:
        return ""
    said = (ran.stdout + ran.stderr).strip().splitlines() or ["nothing was said"]
    return f"compute-sanitizer fails on one kernel of torch: {said[-1]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="stages to run; see --list")
    parser.add_argument("--list", action="store_true", help="print the stages and run nothing")
    parser.add_argument("--wheels", type=Path, help="folder with wheels of missing packages")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "gpu", help="build folder")
    parser.add_argument("--no-build", action="store_true", help="use the installed packages")
    parser.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="time limit for all stages",
    )
    parser.add_argument(
        "--allow-no-gpu", action="store_true", help="succeed on a machine without a GPU"
    )
    parser.add_argument("--output", type=Path, help="folder for a log file per stage")
    asked = parser.parse_args(arguments)
    wanted = stages(asked.device)
    if asked.list:
        width = max(len(stage.name) for stage in wanted)
        print("\n".join(f"{stage.name:{width}}  {stage.what}" for stage in wanted))
        return 0
    if asked.only:
        unknown = set(asked.only) - {stage.name for stage in wanted}
        if unknown:
            parser.error(f"unknown stage: {', '.join(sorted(unknown))}; see --list")
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
            "a GPU, but not everything ran on it" if found.has_gpu else "no GPU, and nothing ran"
        )
        print(f"\nFAILED: there is {there_is}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
