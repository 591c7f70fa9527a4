"""Sessions for releases: images, installation, and tests with several versions of other packages."""

from __future__ import annotations

import os
from pathlib import Path

import nox
from sessions.environments import (
    BUILD_TOOLS,
    FIND_NVCC,
    GPU_OPTION,
    OLDEST_TENSORFLOW_NEEDS,
    PACKAGES,
    ROOT,
    TENSORFLOW_RELEASES,
    WITH_GPU,
    build_wheels,
    compilers,
    environment,
    find_nvcc,
    has_gpu,
    install_made,
    install_optional_packages,
    missing_native_server,
    system_packages,
    wheel_of,
)

CUDA_RELEASES = ("13.0", "13.5")

# Third-party clients of the lookup service, in their newest versions.
SERVING_PEERS = ("grpcio-tools", "grpcio-health-checking", "tritonclient[grpc]", "numpy")

# Names that `install` accepts, and the packages that each installs.
EXTRAS = {
    "torch": ("cli", "framework-torch", "storage-tiered", "train"),
    "tensorflow": ("cli", "framework-tf", "storage-tiered", "train"),
    "jax": ("framework-jax",),
    **{name: (f"backend-{name}", "storage-tiered") for name in ("hkv", "rocksdb", "redis")},
    "tiered": ("storage-tiered",),
    **{name: (f"collective-{name}",) for name in ("mpi", "nccl", "shm")},
    "serve": ("cli", "packed", "storage-tiered", "serve"),
    "train": ("cli", "storage-tiered", "train"),
    "plan": ("cli", "plan"),
    "ray": ("cli", "framework-torch", "storage-tiered", "packed", "train", "engine-ray"),
    "spark": ("cli", "storage-tiered", "train", "engine-spark"),
    **{name: (name,) for name in ("cli", "packed", "testing")},
}


@nox.session
def serving_peers(session: nox.Session) -> None:
    """Tests the service with generated protobuf code, tritonclient and TensorFlow 2.16; some 500 MB."""
    wheels, env = Path(session.create_tmp()).resolve() / "wheels", {}
    install_optional_packages(session)
    build_wheels(session, wheels, "cli", "testing", "storage-tiered", "packed", "serve")
    install_made(session, wheels, "cli", "testing", "storage-tiered", "packed", "serve")
    session.install("pytest", "hypothesis", "grpcio-reflection", "grpcio-tools", silent=True)
    with_tensorflow = (f"tensorflow-cpu=={TENSORFLOW_RELEASES[0]}", *map(str, wheels.glob("*.whl")))
    for name, needed in (("PEERS", SERVING_PEERS), ("TENSORFLOW", with_tensorflow)):
        python = environment(session, Path(session.virtualenv.location) / name.lower(), *needed)
        env[f"SPARRING_SERVE_{name}_PYTHON"] = python
    tests = [f"packages/serve/tests/test_{name}.py" for name in ("peers", "reflection")]
    session.run("pytest", *tests, env=env)


@nox.session
def tensorflow_releases(session: nox.Session) -> None:
    """Tests one wheel of the TensorFlow adapter with each release in turn; downloads about 1 GB."""
    wheels = Path(session.create_tmp()).resolve() / "wheels"
    # Without PyTorch, which takes gigabytes in each environment; see `tests_tensorflow`.
    made = ("cli", "testing", "storage-tiered", "backend-hkv", "packed", "framework-tf", "train")
    build_wheels(session, wheels, *made)
    chosen = [
        each for each in TENSORFLOW_RELEASES if not session.posargs or each in session.posargs
    ]
    for release in chosen:
        folder = Path(session.virtualenv.location) / f"tensorflow-{release}"
        needed = [f"tensorflow-cpu=={release}", "pytest", "hypothesis"]
        if release == TENSORFLOW_RELEASES[0]:
            needed.append(OLDEST_TENSORFLOW_NEEDS)
        python = environment(session, folder, *needed, *map(str, wheels.glob("*.whl")))
        session.run(
            python, "-m", "pytest", "packages/framework-tf/tests", external=True,
            env={"PATH": f"{folder / 'bin'}:{os.environ['PATH']}"},
        )  # fmt: skip


@nox.session
def cuda_releases(session: nox.Session) -> None:
    """Compiles GPU code with nvcc of several releases from PyPI. Names after ``--`` choose releases."""
    session.install(*BUILD_TOOLS)
    here = Path(session.virtualenv.location)
    for release in session.posargs or CUDA_RELEASES:
        find = ("python", str(FIND_NVCC), str(here / "nvcc"), "--release", release)
        env = compilers(str(session.run(*find, silent=True)).split()[-1])
        folder = str(here / "build" / f"cuda-{release}")
        session.run(
            "cmake", "-G", "Ninja", "-S", str(PACKAGES / "backend-hkv"), "-B", folder,
            f"-D{GPU_OPTION}=REQUIRED", silent=True, env=env,
        )  # fmt: skip
        session.run("cmake", "--build", folder, silent=True, env=env)
        session.log(f"CUDA {release}: compiled completely")


@nox.session(venv_backend="none")
def container(session: nox.Session) -> None:
    """Runs the steps of the Containerfile without an engine; requires root, debootstrap and 4 GB.

    Arguments after ``--`` are passed to tools/run_containerfile.py: mirrors, build arguments.
    """
    folder = ROOT / ".nox/container"
    session.run("python3", "tools/run_containerfile.py", str(folder), *session.posargs)


@nox.session
def install(session: nox.Session) -> None:
    """Installs this checkout into an existing environment: `nox -s install -- VENV torch hkv`.

    GPU code is compiled if there is a GPU, or with the name ``--gpu``.
    """
    given = [each for each in session.posargs if each != WITH_GPU]
    if not given or set(given[1:]) - set(EXTRAS):
        session.error(
            f"install: found the arguments {session.posargs}, expected VENV "
            f"[{'] ['.join((*EXTRAS, WITH_GPU))}]; without names, torch and hkv are installed"
        )
    folder, *extras = given
    python = str(Path(folder).expanduser() / "bin/python")
    wanted = [name for extra in extras or ("torch", "hkv") for name in EXTRAS[extra]]
    packages = system_packages(session, *dict.fromkeys(wanted))
    wheels = Path(session.virtualenv.location) / "wheels"
    has_gpu_code = "backend-hkv" in packages and (WITH_GPU in session.posargs or has_gpu())
    nvcc = find_nvcc(session) if has_gpu_code else None
    build_wheels(session, wheels, *packages, nvcc=nvcc)
    made = [str(wheel_of(package, wheels)) for package in ("core", *packages)]
    for options in ((), ("--force-reinstall", "--no-deps")):
        # Twice, because the version stays the same while the checkout changes.
        session.run(python, "-m", "pip", "install", "--quiet", *options, *made, external=True)
    if "serve" in packages:
        for line in missing_native_server():
            session.warn(line)
