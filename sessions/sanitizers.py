"""Sessions that run Python tests with native modules and programs built with sanitizers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import nox
from sessions.build_folders import reuse_folder
from sessions.environments import (
    GPU_OPTION,
    PACKAGES,
    cached,
    install_build_tools,
    install_local,
)

SANITIZERS = "address,undefined"

# The parts of core whose tests run native code, and the packages whose tests require no framework.
SANITIZED_TESTS = (
    *(
        str(PACKAGES / "core/tests" / each)
        for each in (
            "storage", "exchange", "snapshot", "kernels", "updates", "checkpoint", "engine",
            "collective", "runtime", "sharding", "adapter",
        )
    ),
    str(PACKAGES / "cli/tests/snapshots"),
    str(PACKAGES / "storage-tiered/tests"),
    str(PACKAGES / "collective-nccl/tests"),
    str(PACKAGES / "packed/tests"),
    str(PACKAGES / "backend-hkv/tests"),
)  # fmt: skip


@nox.session
def native_sanitized(session: nox.Session) -> None:
    """Runs Python tests of packages with native code under AddressSanitizer and UBSan. Requires g++.

    Runs the tests given after ``--``, or all of these packages; without torch and TensorFlow, which are
    not built for sanitizers. An error ends the process with a report.
    """
    session.install("pytest", "hypothesis", "pytest-xdist", silent=True)
    install_build_tools(session)
    setting = f"--config-settings=cmake.define.SPARRING_SANITIZE={SANITIZERS}"
    install_local(session, "core", "", setting)
    # Tests of core load and start `sparring train`.
    for package in ("cli", "testing", "plan", "storage-tiered", "collective-nccl", "train"):
        install_local(session, package)
    install_local(session, "packed", "", setting)
    without_gpu = f"--config-settings=cmake.define.{GPU_OPTION}=OFF"
    install_local(session, "backend-hkv", "", setting, without_gpu)
    chosen = session.posargs or SANITIZED_TESTS
    session.run("pytest", "-n", "2", *chosen, env=sanitized_environment())


# Tests of serving that start the native server.
SERVING_TESTS = (
    "access_and_audit", "damaged_newest_version", "equal_replies", "front_ends", "health_port",
    "open_inference", "recommend", "refusals", "server", "server_options", "silent_calls",
)  # fmt: skip


@nox.session
def serving_threads(session: nox.Session) -> None:
    """Runs tests of serving with the native server under ThreadSanitizer. Requires libgrpc++-dev."""
    session.install("pytest", "hypothesis", silent=True)
    install_build_tools(session)
    for package in ("core", "cli", "testing", "storage-tiered", "packed", "serve"):
        install_local(session, package, "[metrics]" if package == "serve" else "")
    folder = reuse_folder(Path(session.virtualenv.location) / "build/serve-thread")
    source = PACKAGES / "serve"
    session.run(
        "cmake", "-G", "Ninja", "-S", str(source), "-B", str(folder),
        "-DSPARRING_SERVE_NATIVE=REQUIRED", "-DSPARRING_SANITIZE=thread", silent=True, env=cached(),
    )  # fmt: skip
    program = "sparring-serve-native"
    session.run("cmake", "--build", str(folder), "--target", program, silent=True, env=cached())
    suppressions = source / "native/thread_sanitizer.supp"
    chosen = session.posargs or [f"{source}/tests/test_{name}.py" for name in SERVING_TESTS]
    # A report changes the exit code of a server, which its test checks.
    env = {
        "SPARRING_SERVE_TEST_EXECUTABLE": str(folder / program),
        "TSAN_OPTIONS": f"suppressions={suppressions}:history_size=7",
    }
    session.run("pytest", "-k", "native or both or equal", *chosen, env=env)


def sanitized_environment() -> dict[str, str]:
    """Returns the environment variables of a Python that loads sanitized native modules."""
    compiler = cached().get("CXX", os.environ.get("CXX", "g++"))
    # Python itself is not sanitized, so the sanitizer runtimes must be loaded first. libstdc++ follows,
    # so that AddressSanitizer finds the function that throws exceptions.
    preloaded = [
        subprocess.run(
            [compiler, f"-print-file-name={library}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for library in ("libasan.so", "libubsan.so", "libstdc++.so.6")
    ]
    return {
        "LD_PRELOAD": " ".join(preloaded),
        # Python keeps memory until it ends. A huge allocation must fail as without sanitizers.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
        ":detect_stack_use_after_return=1",
        # Python's own allocator would hide the use of freed objects.
        "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        # Sanitized code takes several times as long.
        "SPARRING_KIT_EXAMPLES": "10",
        "SPARRING_KIT_ROWS": "20000",
        "SPARRING_OPERATIONS": "50",
    }
