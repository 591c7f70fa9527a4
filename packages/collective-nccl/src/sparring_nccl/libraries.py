"""Calls functions of NCCL and of the CUDA driver with ctypes.

Both libraries are opened on demand: ``libcuda.so.1`` is part of NVIDIA's driver, ``libnccl.so.2`` is in
the wheels ``nvidia-nccl-cu12`` and ``nvidia-nccl-cu13``, or installed on the system.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from sparring.errors import DeviceError, InternalError, PluginError

__all__ = [
    "UNIQUE_ID_BYTES",
    "CudaDriver",
    "NcclLibrary",
    "open_cuda",
    "open_nccl",
    "why_nccl_is_unavailable",
]

UNIQUE_ID_BYTES = 128
_WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
_NCCL, _CUDA = "libnccl.so.2", "libcuda.so.1"

# A value of ncclDataType_t: all messages are sent as bytes.
_NCCL_UINT8 = 1
_NCCL_SUCCESS, _NCCL_IN_PROGRESS = 0, 7
_CUDA_SUCCESS, _CUDA_NOT_READY = 0, 600
_STREAM_NON_BLOCKING, _EVENT_DISABLE_TIMING = 1, 2
_RELAXED_CAPTURE = 2

_Handle = ctypes.c_void_p


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * UNIQUE_ID_BYTES),)


class NcclLibrary:
    """The functions of ``nccl.h``, one per method. Errors raise `InternalError`."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.ncclGetErrorString.restype = ctypes.c_char_p
        if hasattr(library, "ncclGetLastError"):
            library.ncclGetLastError.restype = ctypes.c_char_p
        size, handle, number = ctypes.c_size_t, _Handle, ctypes.c_int
        for name in ("ncclSend", "ncclRecv"):
            # In order: buffer, count, type, peer, communicator, stream.
            getattr(library, name).argtypes = (handle, size, number, number, handle, handle)
        library.ncclCommInitRank.argtypes = (ctypes.POINTER(handle), number, _UniqueId, number)
        library.ncclCommAbort.argtypes = (handle,)
        library.ncclCommGetAsyncError.argtypes = (handle, ctypes.POINTER(number))

    def make_unique_id(self) -> bytes:
        unique = _UniqueId()
        self._check("ncclGetUniqueId", self._library.ncclGetUniqueId(ctypes.byref(unique)))
        return bytes(unique)

    def join(self, unique_id: bytes, rank: int, world_size: int) -> int:
        """Returns a communicator; blocks until all ranks have called it."""
        communicator = _Handle()
        unique = _UniqueId.from_buffer_copy(unique_id)
        self._check(
            "ncclCommInitRank",
            self._library.ncclCommInitRank(ctypes.byref(communicator), world_size, unique, rank),
        )
        return int(communicator.value or 0)

    def start_group(self) -> None:
        self._check("ncclGroupStart", self._library.ncclGroupStart())

    def end_group(self) -> None:
        self._check("ncclGroupEnd", self._library.ncclGroupEnd())

    def send(self, pointer: int, num_bytes: int, peer: int, communicator: int, stream: int) -> None:
        self._check(
            "ncclSend",
            self._library.ncclSend(pointer, num_bytes, _NCCL_UINT8, peer, communicator, stream),
        )

    def receive(
        self, pointer: int, num_bytes: int, peer: int, communicator: int, stream: int
    ) -> None:
        self._check(
            "ncclRecv",
            self._library.ncclRecv(pointer, num_bytes, _NCCL_UINT8, peer, communicator, stream),
        )

    def background_error(self, communicator: int) -> str | None:
        """Returns the asynchronous error of a communicator, or None; NCCL also makes progress in
        this call."""
        code = ctypes.c_int()
        result = self._library.ncclCommGetAsyncError(communicator, ctypes.byref(code))
        self._check("ncclCommGetAsyncError", result)
        if code.value in (_NCCL_SUCCESS, _NCCL_IN_PROGRESS):
            return None
        return self._text(code.value)

    def abort(self, communicator: int) -> None:
        """Aborts all operations of a communicator, from any thread, and frees it."""
        self._library.ncclCommAbort(communicator)

    def _check(self, what: str, code: int) -> None:
        if code not in (_NCCL_SUCCESS, _NCCL_IN_PROGRESS):
            raise InternalError(
                f"NCCL: {what} failed: {self._text(code)}; set the environment "
                "variable NCCL_DEBUG=INFO to see more"
            )

    def _text(self, code: int) -> str:
        text = self._library.ncclGetErrorString(code)
        what = text.decode() if text else f"error {code}"
        # Available since NCCL 2.13; the error belongs to the calling thread.
        last = getattr(self._library, "ncclGetLastError", None)
        reason = last(None) if last is not None else None
        return f"{what} ({reason.decode()})" if reason else what


class CudaDriver:
    """The functions of ``cuda.h``, one per method. Errors raise `DeviceError`."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def retain_context(self, device: int) -> int:
        """Returns the context that the CUDA runtime and frameworks use on a device.

        Args:
            device: number of the device on the machine. If the process sees only one device, for
                example because of CUDA_VISIBLE_DEVICES, that one is used.
        """
        self._call("cuInit", 0)
        number, count, context = ctypes.c_int(), ctypes.c_int(), _Handle()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        self._call("cuDeviceGet", ctypes.byref(number), 0 if count.value == 1 else device)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), number)
        return int(context.value or 0)

    @contextmanager
    def in_context(self, context: int) -> Iterator[None]:
        """Makes `context` current on the calling thread within the block.

        Calls in the block do not invalidate a graph that another thread captures at the same time.
        """
        self._call("cuCtxPushCurrent_v2", _Handle(context))
        mode = ctypes.c_int(_RELAXED_CAPTURE)
        try:
            self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
            try:
                yield
            finally:
                self._call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(_Handle()))

    def synchronize(self) -> None:
        """Waits for all work of the current context."""
        self._call("cuCtxSynchronize")

    def make_stream(self) -> int:
        stream = _Handle()
        self._call("cuStreamCreate", ctypes.byref(stream), _STREAM_NON_BLOCKING)
        return int(stream.value or 0)

    def record(self, stream: int) -> int:
        """Returns an event that is reached when the stream has completed its work so far."""
        event = _Handle()
        self._call("cuEventCreate", ctypes.byref(event), _EVENT_DISABLE_TIMING)
        try:
            self._call("cuEventRecord", event, _Handle(stream))
        except DeviceError:
            self.free_event(int(event.value or 0))
            raise
        return int(event.value or 0)

    def order_after(self, event: int, stream: int) -> None:
        """Orders later work of the stream after the event; the host does not wait."""
        self._call("cuStreamWaitEvent", _Handle(stream), _Handle(event), 0)

    def is_reached(self, event: int) -> bool:
        """Returns whether an event is reached."""
        code = self._library.cuEventQuery(_Handle(event))
        if code == _CUDA_NOT_READY:
            return False
        self._check("cuEventQuery", code)
        return True

    def free_event(self, event: int) -> None:
        """Frees an event; streams that wait for it continue to wait."""
        self._library.cuEventDestroy_v2(_Handle(event))

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(name, getattr(self._library, name)(*arguments))

    def _check(self, what: str, code: int) -> None:
        if code != _CUDA_SUCCESS:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(code, ctypes.byref(text))
            reason = text.value.decode() if text.value else f"error {code}"
            raise DeviceError(f"CUDA: {what} failed: {reason}; `sparring doctor` shows the driver")


def why_nccl_is_unavailable() -> str | None:
    """Returns why NCCL cannot be used: a missing library or GPU. None if it can be used."""
    try:
        open_nccl()
        driver = open_cuda()
    except PluginError as error:
        return str(error)
    try:
        driver.retain_context(0)
    except DeviceError as error:
        return f"there is no usable GPU ({error})"
    return None


def open_nccl() -> NcclLibrary:
    """Opens the NCCL library of a wheel or, if there is none, of the system.

    Raises:
        PluginError: the library was not found.
    """
    library = _open(_NCCL, _paths_in_wheels())
    if library is None:
        raise PluginError(
            f"collective 'nccl': {_NCCL} was found neither in the wheels {' and '.join(_WHEELS)} "
            'nor in the system; run: pip install "sparring[nccl]"'
        )
    return NcclLibrary(library)


def open_cuda() -> CudaDriver:
    """Opens NVIDIA's driver.

    Raises:
        PluginError: the driver was not found.
    """
    library = _open(_CUDA, [])
    if library is None:
        raise PluginError(
            f"collective 'nccl': {_CUDA} was not found: there is no NVIDIA driver on this machine; "
            "choose collective 'torch' or 'mpi'"
        )
    return CudaDriver(library)


def _paths_in_wheels() -> list[Path]:
    paths = []
    for wheel in _WHEELS:
        try:
            files = metadata.files(wheel) or []
        except metadata.PackageNotFoundError:
            continue
        paths += [Path(str(file.locate())) for file in files if file.name == _NCCL]
    return paths


def _open(name: str, paths: Sequence[Path]) -> Any:
    for candidate in [*map(str, paths), name]:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            # It does not exist or is for another platform; try the next.
            continue
    return None
