"""Builds the targets of libFuzzer with clang, and measures their coverage."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["NATIVE_TARGETS", "NativeTarget"]

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/fuzz/build"


@dataclass(frozen=True, slots=True)
class NativeTarget:
    """A program in C++, built with AddressSanitizer and UBSan."""

    package: str
    program: str
    option: str
    folders: Sequence[str]
    """Folders under `native/` whose coverage is measured."""

    @property
    def executable(self) -> Path:
        return BUILD / self.package / self.program

    def build(self) -> None:
        compiler = shutil.which("clang++")
        if compiler is None:
            raise SystemExit(
                "clang++ was not found; on Debian run: sudo apt install clang llvm libclang-rt-14-dev"
            )
        _build(compiler, self.package, self.option, self.program)
        if self.program == "requests_fuzz":
            _build(compiler, "packed", "SPARRING_PACKED_FUZZ", "sparring_packed")

    def environment(self, folder: Path) -> dict[str, str]:
        """Returns the environment of the program, which finds serving snapshots in `folder`."""
        library = BUILD / "packed/libsparring_packed.so"
        return {"SPARRING_FUZZ_LIBRARY": str(library), "SPARRING_FUZZ_SNAPSHOTS": str(folder)}

    def coverage(self, corpus: Sequence[Path], environment: dict[str, str]) -> float:
        """Returns the percentage of lines that the inputs of a corpus execute."""
        raw, merged = f"{self.executable}.profraw", f"{self.executable}.profdata"
        subprocess.run(
            [self.executable, "-runs=0", *corpus], check=True, capture_output=True,
            env={**os.environ, **environment, "LLVM_PROFILE_FILE": raw},
        )  # fmt: skip
        subprocess.run([_tool("llvm-profdata"), "merge", raw, "-o", merged], check=True)
        folders = [str(ROOT / "packages" / self.package / "native" / each) for each in self.folders]
        options = [f"-instr-profile={merged}", "-show-region-summary=false", "-use-color=false"]
        report = subprocess.run(
            [_tool("llvm-cov"), "report", self.executable, *options, *folders],
            check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        print(report)
        # Functions, missed, %, lines, missed, %, then branches.
        total = next(line for line in report.splitlines() if line.startswith("TOTAL"))
        return float([word for word in total.split() if word.endswith("%")][1].rstrip("%"))


NATIVE_TARGETS = {
    "packed": NativeTarget(
        "packed", "reader_fuzz", "SPARRING_PACKED_FUZZ", ("format", "reader", "rows")
    ),
    "storage": NativeTarget("backend-hkv", "storage_fuzz", "SPARRING_HKV_FUZZ", ("table",)),
    "native_requests": NativeTarget(
        "serve", "requests_fuzz", "SPARRING_SERVE_FUZZ", ("wire", "tables", "server")
    ),
}


def _build(compiler: str, package: str, option: str, target: str) -> None:
    folder = BUILD / package
    configure = ["cmake", "-G", "Ninja", "-S", ROOT / "packages" / package, "-B", folder]
    if package == "serve":  # without gRPC for C++, the build must fail
        configure.append("-DSPARRING_SERVE_NATIVE=REQUIRED")
    for command in (
        [*configure, f"-D{option}=ON", f"-DCMAKE_CXX_COMPILER={compiler}"],
        ["cmake", "--build", folder, "--target", target],
    ):
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)


def _tool(name: str) -> str:
    """Returns a tool of the installed clang, which may not be in PATH."""
    asked = subprocess.run(
        ["clang++", f"--print-prog-name={name}"], check=True, capture_output=True, text=True
    )
    return asked.stdout.strip()
