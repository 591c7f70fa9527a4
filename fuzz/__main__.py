"""`python -m fuzz [MINUTES]`: builds, seeds and runs the targets, and writes their statistics."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fuzz.native import NATIVE_TARGETS, ROOT

_FOLDER = ROOT / "build/fuzz"
_STATISTICS = _FOLDER / "statistics.json"
_CORPUS = ROOT / "fuzz/corpus"
"""Former findings."""

_MEMORY_MB = 2000
"""Memory of a target. Inputs have at most 8 KiB, so a size that is not checked exceeds it."""
_INPUT_SECONDS = 100
"""Real time, not processor time: a busy machine must not report an input as too slow."""

# Target in Python → its module with arguments, and the packages whose coverage is measured.
_PYTHON_TARGETS = {
    "requests": ("requests", "sparring_serve.wire,sparring_serve.inference"),
    "calls": ("calls", "sparring_serve.server,sparring_serve.security"),
    "configurations": ("configurations", "sparring_cli.documents,sparring_train.config.reading"),
    "snapshots": ("snapshots", "sparring.snapshot.format,sparring.snapshot.reader"),
    "csv": ("tables csv", "sparring_train.data.table"),
    "parquet": ("tables parquet", "sparring_train.data.table"),
    "streams": ("streams", "sparring_train.data.stream.events,sparring_train.data.stream.event_times"),
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Returns 1 if a target failed."""
    names = (*NATIVE_TARGETS, *_PYTHON_TARGETS)
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument(
        "minutes", nargs="?", type=float, default=10.0, help="processor time of each target"
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(names)}; default: all"
    )
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(names))
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; choose from {', '.join(names)}")
    results = {}
    for name in given.names or names:
        results[name] = _fuzz(name, given.minutes)
        _write_statistics({name: results[name]})
    for name, result in results.items():
        found = f"FAILED, input {result['input']}" if result["findings"] else "nothing was found"
        print(
            f"{name}: {found}; {result['executions']:,} executions in {result['minutes']} minutes, "
            f"{result['coverage_percent']} % of lines"
        )
    return 1 if any(each["findings"] for each in results.values()) else 0


def _fuzz(name: str, minutes: float) -> dict[str, Any]:
    """Runs one target, and returns its statistics."""
    corpus = _FOLDER / name
    corpus.mkdir(parents=True, exist_ok=True)
    known = [corpus, *([_CORPUS / name] if (_CORPUS / name).is_dir() else [])]
    # In memory, because most targets write each input to a file.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        python = _python_environment(folder)
        target = NATIVE_TARGETS.get(name)
        module = name if target is not None else _PYTHON_TARGETS[name][0]
        served = Path(folder, "served")
        subprocess.run(
            [sys.executable, "-m", "fuzz.seeds", module, corpus, served],
            check=True, cwd=ROOT, env={**os.environ, **python},
        )  # fmt: skip
        if target is not None:
            target.build()
            environment = {"TMPDIR": folder, **target.environment(served)}
            measure = partial(target.coverage, known, environment)
            command = [str(target.executable)]
            environment = {**environment, "LLVM_PROFILE_FILE": "/dev/null"}
        else:
            environment = python
            measure = partial(_python_coverage, name, known, environment)
            command = [sys.executable, "-m", *f"fuzz.{module}".split()]
        ran = _run(name, command, known, minutes, environment)
        # A finding would also end a replay, if it is in the corpus.
        return ran | {"coverage_percent": None if ran["findings"] else round(measure(), 1)}


def _python_environment(folder: str) -> dict[str, str]:
    """Returns the environment of a target in Python; `folder` is for its temporary files.

    If the native module of core was built with sanitizers, by clang, their library is preloaded.
    """
    paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {"TMPDIR": folder, "PYTHONPATH": paths}
    core = importlib.util.find_spec("sparring")
    assert core is not None
    assert core.origin is not None
    if not any(
        b"__asan_init" in each.read_bytes() for each in Path(core.origin).parent.glob("*.so")
    ):
        print("the native module of core has no sanitizers; nox -s fuzz builds it with them")
        return environment
    import atheris  # type: ignore[import-untyped]  # it ships no types

    return environment | {
        "LD_PRELOAD": str(Path(atheris.path()) / "asan_with_fuzzer.so"),
        # Python keeps memory until it ends. A huge allocation must fail as without sanitizers.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        # Python's own allocator would hide the use of freed objects.
        "PYTHONMALLOC": "malloc",
    }


def _python_coverage(name: str, corpus: Sequence[Path], environment: Mapping[str, str]) -> float:
    """Returns the percentage of lines and branches that the inputs of a corpus execute."""
    module, *words = _PYTHON_TARGETS[name][0].split()
    measured, written = str(_FOLDER / f"{name}.coverage"), _FOLDER / f"{name}.json"
    coverage = [sys.executable, "-m", "coverage"]
    replay = ["-m", f"fuzz.{module}", *words, "--replay", *map(str, corpus)]
    sources = f"--source={_PYTHON_TARGETS[name][1]}"
    for command in (
        [*coverage, "run", "--branch", f"--data-file={measured}", sources, *replay],
        [*coverage, "json", "-q", f"--data-file={measured}", "-o", str(written)],
    ):
        subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment})
    return float(json.loads(written.read_text())["totals"]["percent_covered"])


def _run(
    name: str,
    command: Sequence[str],
    corpus: Sequence[Path],
    minutes: float,
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Runs a fuzzer for its minutes of processor time; returns its statistics."""
    begin, executions, peak_mb = _processor_seconds(), 0, 0
    findings, saved = 0, None
    while (left := 60 * minutes - (_processor_seconds() - begin)) > 0:
        ran = subprocess.run(
            [*command, *map(str, corpus), f"-max_total_time={max(1, round(left))}", "-max_len=8192",
             f"-timeout={_INPUT_SECONDS}", f"-rss_limit_mb={_MEMORY_MB}", "-print_final_stats=1",
             "-verbosity=1", f"-artifact_prefix={_FOLDER}/{name}-"],
            cwd=ROOT, env={**os.environ, **environment}, check=False,
            stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        said = ran.stderr.splitlines()
        shown = [each for each in said if "stat::" in each or " DONE " in each]
        print(*(shown if ran.returncode == 0 else said[-60:]), sep="\n", flush=True)
        executions += _statistic(ran.stderr, "number_of_executed_units")
        peak_mb = max(peak_mb, _statistic(ran.stderr, "peak_rss_mb"))
        if ran.returncode:
            found = re.search(r"Test unit written to (\S+)", ran.stderr)
            findings, saved = 1, None if found is None else found[1]
            break
    return {
        "executions": executions,
        "minutes": round((_processor_seconds() - begin) / 60, 1),
        "peak_mb": peak_mb,
        "findings": findings,
        "input": saved,
    }


def _statistic(text: str, name: str) -> int:
    """Returns the last value of a statistic of libFuzzer, or 0."""
    found = re.findall(rf"stat::{name}:\s*(\d+)", text)
    return int(found[-1]) if found else 0


def _write_statistics(results: Mapping[str, Any]) -> None:
    """Adds the results to the file, which keeps the results of other targets."""
    before = json.loads(_STATISTICS.read_text()) if _STATISTICS.exists() else {}
    written = _STATISTICS.with_suffix(".new")
    written.write_text(json.dumps({**before, **results}, indent=1, sort_keys=True) + "\n")
    shutil.move(written, _STATISTICS)


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
