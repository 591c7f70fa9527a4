"""Bundles of exported programs: their folder, and the tables that are bound to them.

Framework adapters write and load bundles with these functions. ``sparring_program.h`` describes a bundle.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sparring.contracts import Closable
from sparring.errors import InvalidArgumentError, ProgramError
from sparring_packed.library import include_path, library_path
from sparring_packed.model_files import encode_parameters

__all__ = [
    "Program",
    "ProgramBinding",
    "ProgramLibrary",
    "new_bundle",
    "program_binding",
]

_FORMAT = "sparring-program/3"
_FORMATS = ("sparring-program/2", _FORMAT)
"""The previous format has no parameters outside of the program."""
_BINDING = "binding.txt"
_DESCRIPTION = "bundle.json"
_PARAMETERS = "parameters.txt"
_EXPORTED_PARAMETERS = "parameters.safetensors"
_FILES = "files.txt"
_FILES_FORMAT = "sparring-program-files/1"
_HEADERS = ("sparring_program.h", "sparring_packed.h", "sparring/storage_abi.h")


class _Parameter(ctypes.Structure):
    """`SparringProgramParameter` of ``sparring_program.h``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("num_dims", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("data", ctypes.c_void_p),
        ("num_bytes", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class ProgramParameter:
    """A parameter of a model in the version that a run holds."""

    dtype: str
    """As in safetensors files, for example ``F32``."""
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    """Its bytes; must not be written, and valid until the run ends."""


class ProgramLibrary:
    """The functions of ``sparring_program.h``.

    Args:
        library: path of the shared library that contains the functions. Defaults to the library of this
            package.
    """

    def __init__(self, library: str | os.PathLike[str] | None = None) -> None:
        self._c = ctypes.CDLL(os.fspath(library_path() if library is None else library))
        self._c.sparring_program_error.restype = ctypes.c_char_p

    def bind(self, bundle: Path, served: str) -> None:
        """Binds the lookups of a program to tables.

        Args:
            bundle: folder of the bundle.
            served: a serving snapshot, or a folder of them, of which the newest is used.

        Raises:
            ProgramError: a file of the bundle is damaged, or `served` does not contain the tables for
                which the program was exported.
        """
        self._call("bind", os.fsencode(bundle), os.fsencode(served))

    def refresh(self, bundle: Path) -> bool:
        """Maps the newest version of the program's tables.

        Args:
            bundle: folder of the bundle.

        Returns:
            Whether there was a newer version.

        Raises:
            ProgramError: the program is not bound, or the version cannot be mapped.
        """
        is_changed = ctypes.c_int32()
        self._call("refresh", os.fsencode(bundle), ctypes.byref(is_changed))
        return bool(is_changed.value)

    def version(self, bundle: Path) -> tuple[str, int]:
        """Returns the hash of the manifest and the step of the mapped version.

        Args:
            bundle: folder of the bundle.

        Raises:
            ProgramError: the program is not bound.
        """
        digest, step = ctypes.create_string_buffer(33), ctypes.c_int64()
        self._call("version", os.fsencode(bundle), digest, ctypes.byref(step))
        return digest.value.decode(), step.value

    def release(self, bundle: Path) -> None:
        """Unmaps the tables of a program.

        Args:
            bundle: folder of the bundle.
        """
        self._call("release", os.fsencode(bundle))

    @contextmanager
    def hold_version(self, handle: str) -> Iterator[int]:
        """Holds the current version of a program during a run, and yields its number.

        Args:
            handle: handle of the program.

        Raises:
            ProgramError: the program is not bound.
        """
        version = ctypes.c_int64()
        self._call("begin", handle.encode(), ctypes.byref(version))
        try:
            yield version.value
        finally:
            self._call("end", version)

    def parameters(self, version: int) -> list[ProgramParameter]:
        """Returns the parameters of a version that a run holds, in the order of the export.

        Args:
            version: number of the version.

        Raises:
            ProgramError: no run holds the version.
        """
        count = ctypes.c_int64()
        self._call("num_parameters", ctypes.c_int64(version), ctypes.byref(count))
        return [self._parameter(version, place) for place in range(count.value)]

    def _parameter(self, version: int, place: int) -> ProgramParameter:
        found = _Parameter()
        size = ctypes.c_uint64(ctypes.sizeof(found))
        self._call(
            "parameter", ctypes.c_int64(version), ctypes.c_int64(place), ctypes.byref(found), size
        )
        data = np.ctypeslib.as_array(
            ctypes.cast(found.data, ctypes.POINTER(ctypes.c_uint8)), (found.num_bytes,)
        )
        return ProgramParameter(found.dtype.decode(), tuple(found.sizes[: found.num_dims]), data)

    def describe(self, served: str) -> tuple[str, dict[str, int]]:
        """Returns the hash of the newest version, and table → dim.

        Args:
            served: a serving snapshot, or a folder of them.

        Raises:
            ProgramError: there is no serving snapshot.
        """
        text = ctypes.create_string_buffer(1 << 20)
        self._call("describe", os.fsencode(served), text, ctypes.c_uint64(len(text)))
        digest, *lines = text.value.decode().splitlines()
        tables = (line.partition(" ") for line in lines)
        return digest, {name: int(dim) for dim, _, name in tables}

    def _call(self, name: str, *arguments: Any) -> None:
        if getattr(self._c, f"sparring_program_{name}")(*arguments):
            raise ProgramError(self._c.sparring_program_error().decode(errors="replace"))


class Program(Closable):
    """An exported program with its tables. The `load_program` function of an adapter creates it.

    It is called with the inputs of the model, and returns the outputs of the model. A call reads all rows
    and parameters from one version.

    Args:
        bundle: the folder that `export_program` wrote.
        served: a serving snapshot, or a folder of serving snapshots, of which the newest is used.
        framework: framework of the program, for example ``torch``.
        library: returns the functions of ``sparring_program.h`` for the operators in the bundle.
        load: loads the framework's part of the bundle, which has the given folder and library, and
            returns a function of the inputs.

    Raises:
        InvalidArgumentError: there is no bundle, it belongs to another framework, or a file is damaged.
        ProgramError: the program was exported for other tables, or for another version of them.
    """

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        served: str | os.PathLike[str],
        framework: str,
        library: Callable[[Path], ProgramLibrary],
        load: Callable[[Path, ProgramLibrary], Callable[..., Any]],
    ) -> None:
        self._bundle = Path(bundle).absolute()
        self.description = _read_bundle(self._bundle, framework)
        self._library = library(self._bundle)
        self._library.bind(self._bundle, os.fspath(served))
        try:
            self._call = load(self._bundle, self._library)
        except BaseException:
            self._library.release(self._bundle)
            raise

    def __call__(self, *inputs: Any) -> Any:
        return self._call(*inputs)

    @property
    def version(self) -> tuple[str, int]:
        """Hash of the manifest of the current tables, and their training step."""
        return self._library.version(self._bundle)

    def refresh(self) -> bool:
        """Switches to the newest version of rows and parameters, and returns whether it is newer than the
        current one. Calls in progress finish on their version.

        Raises:
            ProgramError: the program is bound to one version, or the new version is invalid. The
                current version remains in use.
        """
        return self._library.refresh(self._bundle)

    def close(self) -> None:
        """Closes the tables. The program cannot be called afterwards."""
        self._library.release(self._bundle)


class ProgramBinding:
    """Binds a new program to a version of its tables; see `program_binding`.

    Args:
        folder: folder of the bundle.
        digest: hash of the manifest of the serving snapshot.
        dims: table → dim, for the tables that the program looks up in.
        follow: whether the program may also read later versions.
    """

    def __init__(self, folder: Path, digest: str, dims: Mapping[str, int], follow: bool) -> None:
        self.folder, self.digest, self.dims, self.follow = folder, digest, dict(dims), follow
        self.handle = f"{'follow' if follow else 'exact'}:{digest}:{folder.name}"


def program_binding(
    library: ProgramLibrary,
    bundle: str | os.PathLike[str],
    dims: Mapping[str, int],
    served: str | os.PathLike[str],
    follow: bool,
) -> ProgramBinding:
    """Creates the binding of a new program to a serving snapshot with all of its tables.

    Args:
        library: functions that read the serving snapshot.
        bundle: the folder that the bundle will have; it must not exist.
        dims: table → dim, of all tables of the program.
        served: a serving snapshot, or a folder of them: the version to which the program is bound.
        follow: whether the program may read later versions of the tables.

    Raises:
        InvalidArgumentError: the bundle exists, or a table is missing or has a different dim.
        ProgramError: there is no serving snapshot.
    """
    folder = Path(bundle).absolute()
    if folder.exists():
        raise InvalidArgumentError(
            f"export_program: {folder} exists; choose another folder, or remove it first"
        )
    digest, tables = library.describe(os.fspath(served))
    for name, dim in dims.items():
        if tables.get(name) != dim:
            found = (
                f"dim {tables[name]}" if name in tables else f"tables {', '.join(sorted(tables))}"
            )
            raise InvalidArgumentError(
                f"export_program: the model looks up in table {name!r} of dim {dim}, but {served} has "
                f"{found}; publish a snapshot of this model",
                table=name,
            )
    return ProgramBinding(folder, digest, dims, follow)


@contextmanager
def new_bundle(
    binding: ProgramBinding,
    framework: str,
    operators: Path,
    parameters: Mapping[str, npt.NDArray[Any]] | None = None,
    places: Mapping[str, int] | None = None,
) -> Iterator[Path]:
    """Yields a folder to write a program to, which atomically becomes the bundle after the block.

    Args:
        binding: binding of the program.
        framework: name and release of the framework.
        operators: path of the library with the operators of the program.
        parameters: parameters that the program reads from versions, by the names of serving snapshots,
            in the order of the program. None if the program contains its parameters.
        places: parameter → place among the names that a serving snapshot lists, if these names differ
            between processes. Without such a list, the names are used.
    """
    folder = binding.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield made
        (made / "lib").mkdir()
        for library in (operators, library_path()):
            shutil.copy2(library, made / "lib")
        for header in _HEADERS:
            (made / "include" / header).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(include_path() / header, made / "include" / header)
        lines = [
            binding.handle,
            *(f"{dim} {name}" for name, dim in sorted(binding.dims.items())),
        ]
        (made / _BINDING).write_text("\n".join(lines) + "\n")
        if parameters is not None:
            _write_parameters(made, parameters, places or {})
        description = {
            "format": _FORMAT,
            "framework": framework,
            "handle": binding.handle,
            "served": {"hash": binding.digest, "follow": binding.follow},
            "tables": binding.dims,
            "parameters": None if parameters is None else list(parameters),
        }
        (made / _DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")
        write_file_list(made)
        made.chmod(0o755)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _write_parameters(
    folder: Path, parameters: Mapping[str, npt.NDArray[Any]], places: Mapping[str, int]
) -> None:
    """Writes what a program reads, and the values at the export; see ``sparring_program.h``."""
    content = encode_parameters(parameters)
    (folder / _EXPORTED_PARAMETERS).write_bytes(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    lines = [
        f"{header[name]['dtype']} {','.join(map(str, header[name]['shape'])) or '-'} "
        f"{places.get(name, '-')} {name}\n"
        for name in parameters
    ]
    (folder / _PARAMETERS).write_text("".join(lines))


def _read_bundle(folder: Path, framework: str) -> Mapping[str, Any]:
    """Reads the description of a bundle, and verifies its files.

    Args:
        folder: folder of the bundle.
        framework: expected framework of the program, for example ``torch``.

    Raises:
        InvalidArgumentError: there is no bundle, it belongs to another framework, or a file is damaged.
    """
    try:
        description: dict[str, Any] = json.loads((folder / _DESCRIPTION).read_bytes())
        found, made_by = description["format"], description["framework"].split()[0]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InvalidArgumentError(
            f"there is no bundle of a program at {folder} ({type(error).__name__}: {error}); pass the "
            "folder that export_program wrote"
        ) from None
    if found not in _FORMATS:
        raise InvalidArgumentError(
            f"the bundle {folder} has the format {found!r}, expected {_FORMAT!r}; export the program "
            "again with this release"
        )
    if made_by != framework:
        raise InvalidArgumentError(
            f"the bundle {folder} contains a program of {made_by}, expected {framework}; "
            f"load it with {made_by}, or pass a bundle of {framework}"
        )
    _check_files(folder)
    return description


def write_file_list(folder: Path) -> None:
    """Writes the hash of each file of a bundle; ``sparring_program.h`` describes the format."""
    paths = sorted(each for each in folder.rglob("*") if each.is_file() and each.name != _FILES)
    lines = "".join(
        f"{xxhash.xxh3_64_hexdigest(each.read_bytes())} {each.relative_to(folder)}\n"
        for each in paths
    )
    (folder / _FILES).write_text(
        f"{_FILES_FORMAT} {xxhash.xxh3_64_hexdigest(lines.encode())}\n{lines}"
    )


def _check_files(folder: Path) -> None:
    """Compares the files of a bundle with their hashes before a library in it is loaded.

    `sparring_program_bind` does the same for programs without Python.

    Raises:
        InvalidArgumentError: a file is damaged or missing.
    """

    content = _read_checked(folder / _FILES, None)
    for line in content.decode().splitlines()[1:]:
        digest, _, name = line.partition(" ")
        _read_checked(folder / name, digest)


def _read_checked(path: Path, digest: str | None) -> bytes:
    """Returns the content of a file after checking its hash.

    `digest` is None for the list of files, which contains its own hash."""
    try:
        content = path.read_bytes()
    except OSError:
        why = "missing or cannot be read"
    else:
        if digest is None:
            header, _, lines = content.partition(b"\n")
            is_whole = header == f"{_FILES_FORMAT} {xxhash.xxh3_64_hexdigest(lines)}".encode()
        else:
            is_whole = xxhash.xxh3_64_hexdigest(content) == digest
        if is_whole:
            return content
        why = "damaged"
    raise InvalidArgumentError(
        f"{path} is {why}; copy the bundle again, or export the program again"
    )
