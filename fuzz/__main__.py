"""`python -m fuzz [MINUTES]`: builds, seeds and runs the targets, and prints their coverage."""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import sparring_packed
from sparring import ScanChunk, SnapshotWriter, TableDescription
from sparring.contracts import TableConfig
from sparring_serve.wire.fields import encode
from sparring_serve.wire.messages import PullRequest, RecommendRequest, TableIds
from sparring_serve.wire.open_inference import InferRequest, InferTensor, TensorContents

ROOT = Path(__file__).parents[1]
PACKED = ROOT / "packages/packed"
_FOLDER = ROOT / "build/fuzz"
_DTYPES = ("fp32", "fp16", "bf16", "int8", "int4")


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a target failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument(
        "minutes", nargs="?", type=float, default=10.0, help="processor time of each target"
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="packed, requests, calls; all by default"
    )
    given = parser.parse_args(arguments)
    targets = {"packed": _fuzz_packed, "requests": _fuzz_requests, "calls": _fuzz_calls}
    unknown = sorted(set(given.names) - set(targets))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; choose from {', '.join(targets)}")
    results = {name: targets[name](given.minutes) for name in given.names or targets}
    for name, is_sound in results.items():
        print(f"{name}: {'nothing was found' if is_sound else 'FAILED'}")
    return 0 if all(results.values()) else 1


def _fuzz_packed(minutes: float) -> bool:
    compiler = shutil.which("clang++")
    if compiler is None:
        print("packed: clang++ was not found; on Debian run: sudo apt install clang llvm")
        return False
    build, corpus = _FOLDER / "build", _FOLDER / "packed"
    settings = ("-DSPARRING_PACKED_FUZZ=ON", f"-DCMAKE_CXX_COMPILER={compiler}")
    for command in (
        ["cmake", "-G", "Ninja", "-S", PACKED, "-B", build, *settings],
        ["cmake", "--build", build, "--target", "reader_fuzz"],
    ):
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    corpus.mkdir(parents=True, exist_ok=True)
    _seed_packed(corpus)
    program = str(build / "reader_fuzz")
    raw, merged = str(build / "reader.profraw"), str(build / "reader.profdata")
    is_sound = _run([program], corpus, minutes, {"LLVM_PROFILE_FILE": "/dev/null"})
    replay = [program, "-runs=0", str(corpus)]
    subprocess.run(
        replay, check=True, capture_output=True, env={**os.environ, "LLVM_PROFILE_FILE": raw}
    )
    subprocess.run([_tool("llvm-profdata"), "merge", raw, "-o", merged], check=True)
    folders = [str(PACKED / "native" / each) for each in ("format", "reader", "rows")]
    report = [_tool("llvm-cov"), "report", program, f"-instr-profile={merged}", *folders]
    subprocess.run([*report, "-show-region-summary=false", "-use-color=false"], check=True)
    return is_sound


def _tool(name: str) -> str:
    """Returns a tool of the installed clang, which may not be in PATH."""
    asked = subprocess.run(
        ["clang++", f"--print-prog-name={name}"], check=True, capture_output=True, text=True
    )
    return asked.stdout.strip()


def _seed_packed(corpus: Path) -> None:
    """Creates manifests and files of small serving snapshots, one with a delta, of each dtype."""
    keys = np.arange(-20, 40, dtype=np.int64)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in _DTYPES:
            base = None
            for step in (1, 2):
                writer = SnapshotWriter(
                    f"{folder}/{dtype}/run/step-{step}", step=step,
                    base=None if base is None else f"{folder}/{dtype}/run/step-1",
                )  # fmt: skip
                rows = np.random.default_rng(step).normal(size=(len(keys), 5)).astype(np.float32)
                chunk = ScanChunk(keys, rows, np.zeros(len(keys), np.uint64))
                table = TableDescription.of(TableConfig("item", 5))
                writer.write_table(table, [chunk], [] if base is None else [keys + 100])
                writer.finish()
                writer.commit()
                served = f"{folder}/{dtype}/served/step-{step}"
                sparring_packed.write(
                    f"{folder}/{dtype}/run/step-{step}", served, quantize={"item": dtype}, base=base
                )
                base = served
                for path in Path(served).iterdir():
                    kinds = {"manifest": (0,), "erased": (2, 18), "rows": (1, 3, 19)}
                    name = path.name.partition(".")[0]
                    for kind in kinds.get(name, ()):
                        # The fuzzer appends the hash of a manifest.
                        content = path.read_bytes()
                        if name == "manifest":
                            content = content[: content.rindex(b'\n "hash": "')]
                        for level in (0, 4, 8):
                            seed = corpus / f"seed-{dtype}-{step}-{kind | level}"
                            seed.write_bytes(bytes([kind | level]) + content)


def _fuzz_requests(minutes: float) -> bool:
    corpus = _FOLDER / "requests"
    corpus.mkdir(parents=True, exist_ok=True)
    whole = [
        PullRequest((TableIds("item", bytes(range(64))),), 1, 2, "0" * 32, 3.5),
        PullRequest((TableIds("item", np.array([7, -1]).tobytes()),)),
        RecommendRequest(
            "item", "", np.ones(4, np.float32).tobytes(), 2, bytes(8), np.array([1]).tobytes()
        ),
        InferRequest(
            model_name="item",
            inputs=(InferTensor("ids", "INT64", (3,), TensorContents((1, -2, 3))),),
        ),
    ]
    for number, message in enumerate(whole):
        # As each of the messages that the first byte can select.
        for kind in range(64):
            (corpus / f"seed-{number}-{kind}").write_bytes(bytes([kind]) + encode(message))
    sources = "sparring_serve.wire,sparring_serve.inference,sparring_serve.recommendation"
    return _fuzz_python("requests", minutes, sources)


def _fuzz_calls(minutes: float) -> bool:
    corpus = _FOLDER / "calls"
    corpus.mkdir(parents=True, exist_ok=True)
    for path in range(10):
        for timeout in range(6):
            # Only headers, a whole message, a partial message, and a cancelled call.
            begin = bytes([0, path, timeout, path % 4, 1])
            for kind, rest in enumerate((b"", b"\1\0", b"\2\0\0\5\1", b"\3\0")):
                (corpus / f"seed-{path}-{timeout}-{kind}").write_bytes(begin + rest)
    return _fuzz_python("calls", minutes, "sparring_serve.server,sparring_serve.security")


def _fuzz_python(name: str, minutes: float, sources: str) -> bool:
    """Runs the target `fuzz.NAME` over its corpus, and prints the coverage of the sources."""
    corpus = _FOLDER / name
    target = [sys.executable, "-m", f"fuzz.{name}"]
    environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    is_sound = _run(target, corpus, minutes, environment)
    measured = str(_FOLDER / f"{name}.coverage")
    coverage = [sys.executable, "-m", "coverage"]
    for command in (
        [*coverage, "run", "--branch", f"--data-file={measured}", f"--source={sources}",
         "-m", f"fuzz.{name}", "--replay", str(corpus)],
        [*coverage, "report", f"--data-file={measured}"],
    ):  # fmt: skip
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment})
    return is_sound


def _run(
    command: Sequence[str], corpus: Path, minutes: float, environment: Mapping[str, str]
) -> bool:
    """Runs a fuzzer for its minutes of processor time; returns whether it found no error."""
    begin = _processor_seconds()
    while (left := 60 * minutes - (_processor_seconds() - begin)) > 0:
        ran = subprocess.run(
            [*command, str(corpus), f"-max_total_time={max(1, round(left))}", "-max_len=8192",
             "-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1", "-verbosity=1"],
            cwd=_FOLDER, env={**os.environ, **environment}, check=False,
            stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        said = ran.stderr.splitlines()
        shown = [each for each in said if "stat::" in each or " DONE " in each]
        print(*(shown if ran.returncode == 0 else said[-40:]), sep="\n", flush=True)
        if ran.returncode:
            return False
    print(f"{(_processor_seconds() - begin) / 60:.1f} minutes of processor time")
    return True


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
