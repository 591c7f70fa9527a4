"""A collective over MPI, with mpi4py.

Each operation is one Isend or Irecv of bytes on a separate communicator, so that its tags never
match messages of the program. MPI transfers messages only while it is polled. `Work.done` polls it,
so an exchange overlaps its own work with the transfer if it calls `Work.done` from time to time.

MPI itself waits without a limit, even for ranks that have ended. Here each wait polls and has a deadline.
A rank whose wait failed notifies the others of the missing rank. MPI cannot continue without a
rank, and its finalization would wait for the missing rank. Therefore, after a failure, `MPI_Abort`
ends the job when the process ends. If a process is killed, the launcher ends all others within
milliseconds.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.contracts import (
    NOTICE_TAG,
    NUM_TAGS,
    Array,
    Backoff,
    Collective,
    Failure,
    Inquiry,
    Membership,
    Notice,
    NoticeKind,
    PolledWork,
    Work,
    WorkContext,
    empty_notice,
)
from sparring.errors import (
    InvalidArgumentError,
    PeerFailure,
    PluginError,
    SparringError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiCollective", "join_mpi"]

_INSTALL = 'run: pip install "sparring[mpi]"'

# The smallest tags are those of notices and operations, because MPI only guarantees tags up to
# 32,767. mpich supports tags up to 2^29.
_OWN_TAGS = 2

# The largest count of a message in MPI 3; later versions count in 64 bits.
_MAX_BYTES_OF_MPI_3 = 2**31 - 1

# The last notice of a closing rank may arrive before the end of an earlier message of that rank.
_GRACE_SECONDS = 0.1


def join_mpi(membership: Membership, deadline_seconds: float) -> Collective:
    """Joins all ranks of ``MPI.COMM_WORLD``. All ranks call it.

    Raises:
        InvalidArgumentError: MPI and the rendezvous report different ranks or world sizes.
        PluginError: no MPI library was found, or mpi4py is not installed.
    """
    mpi = _import_mpi()
    world = mpi.COMM_WORLD
    if (world.rank, world.size) != (membership.rank, membership.world_size):
        raise InvalidArgumentError(
            f"collective 'mpi': the rendezvous reports rank {membership.rank} of "
            f"{membership.world_size}, MPI reports rank {world.rank} of {world.size}; start the ranks "
            "with mpiexec and choose rendezvous 'environment'",
            rank=world.rank,
            world_size=world.size,
        )
    return MpiCollective(world.Dup(), deadline_seconds=deadline_seconds)


def _import_mpi() -> Any:
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise PluginError(f"collective 'mpi': mpi4py is not installed; {_INSTALL}") from error
    # mpi4py raises these if it finds no MPI library.
    except (ImportError, RuntimeError) as error:
        raise PluginError(
            f"collective 'mpi': mpi4py finds no MPI library ({error}); {_INSTALL}, which installs "
            "the mpich wheel"
        ) from error
    return MPI


class MpiCollective(Collective):
    """One rank of an MPI communicator.

    Args:
        communicator: used only here. It is never freed, because freeing it waits for all ranks.
        deadline_seconds: maximum time of each wait.
    """

    def __init__(self, communicator: MPI.Intracomm, *, deadline_seconds: float) -> None:
        super().__init__(communicator.rank, communicator.size, deadline_seconds=deadline_seconds)
        self.mpi = _import_mpi()
        largest_tag: Any = communicator.Get_attr(self.mpi.TAG_UB)
        self._num_tags = min(NUM_TAGS, int(largest_tag) + 1 - _OWN_TAGS)
        self._communicator = communicator
        self._communicator.Set_errhandler(self.mpi.ERRORS_RETURN)
        # Keeps buffers alive, because MPI writes to them until the message is complete.
        self._under_way: dict[int, _MpiWork] = {}
        self._failure: Failure | None = None
        # rank -> time at which its notice that it left or failed arrived, and the reason
        self._gone: dict[int, tuple[float, Failure]] = {}
        self._inquiry = Inquiry(self.rank, deadline_seconds)
        self._heard = empty_notice()
        self._hearing: Any = None
        self._status = self.mpi.Status()
        if self.world_size > 1:
            self._listen()

    def close(self) -> None:
        """Leaves the group and notifies the others, without waiting for operations in progress."""
        if self._is_closed:
            return
        if self._failure is None:
            self._send_notices(Notice(NoticeKind.LEFT), self._others())
        self._is_closed = True
        # MPI libraries print warnings about receives that are still open at exit.
        for work in list(self._under_way.values()):
            work.give_up()
        if self._hearing is not None:
            _cancel(self._hearing)

    def progress(self, waiting_for: int) -> None:
        """As in the contract. Polling any message advances all messages."""
        if not self._is_closed and self._hearing is not None:
            self._handle_notice(waiting_for)

    # -- for works --------------------------------------------------------------------

    def forget(self, work: _MpiWork) -> None:
        self._under_way.pop(id(work), None)

    def wait_failure(
        self, peer: int, context: WorkContext, limit: float, now: float
    ) -> PeerFailure | None:
        """Returns the error if a wait for `peer` cannot succeed, and notifies the other ranks;
        otherwise returns None."""
        if self._failure is None and not self._is_closed:
            self._handle_notice(peer)
            gone_at, reason = self._gone.get(peer, (now, None))
            if reason is not None and now > gone_at + _GRACE_SECONDS:
                self._fail(reason)
            elif now >= limit:
                self._fail(self._inquiry.verdict(peer, self._others()))
            elif self._inquiry.is_due(limit, now):
                self._send_notices(
                    Notice(NoticeKind.QUESTION, round=self._inquiry.round), self._others()
                )
        if self._failure is None:
            return None
        return self._note(peer, self._failure, context)

    def transport_failure(self, peer: int, error: Exception, context: WorkContext) -> PeerFailure:
        if self._failure is None:
            # MPI's message has several lines, which are joined.
            self._fail(Failure(peer, f"MPI reports {' '.join(str(error).split())}"))
        assert self._failure is not None
        return self._note(peer, self._failure, context)

    # -- sending and receiving ------------------------------------------------------

    def _give_up_impl(self, culprit: int) -> None:
        if self._failure is None:
            self._fail(Failure.own(culprit))

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        request = self._communicator.Isend(self._message(buffer), destination, self._tag(tag))
        return self._track(_MpiWork(self, request, buffer, destination))

    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        request = self._communicator.Irecv(self._message(buffer), source, self._tag(tag))
        return self._track(_MpiReceiving(self, request, buffer, source))

    def _track(self, work: _MpiWork) -> Work:
        self._under_way[id(work)] = work
        return work

    def _message(self, buffer: Array) -> list[Any]:
        if buffer.nbytes > _MAX_BYTES_OF_MPI_3 and self.mpi.VERSION < 4:
            raise UnsupportedError(
                f"collective 'mpi': a message of {buffer.nbytes} bytes requires MPI 4, found MPI "
                f"{self.mpi.VERSION}; use a newer MPI library or smaller chunks"
            )
        return [buffer.reshape(-1).view(np.uint8), self.mpi.BYTE]

    def _tag(self, tag: int) -> int:
        if NUM_TAGS > tag >= self._num_tags:
            raise InvalidArgumentError(
                f"collective 'mpi': this MPI library supports tags below {self._num_tags}, "
                f"found {tag}; use a smaller tag"
            )
        return tag + _OWN_TAGS if tag < NUM_TAGS else tag - NUM_TAGS

    # -- notices about ranks ------------------------------------------------------------

    def _listen(self) -> None:
        self._hearing = self._communicator.Irecv(
            self._message(self._heard), self.mpi.ANY_SOURCE, self._tag(NOTICE_TAG)
        )

    def _handle_notice(self, waiting_for: int) -> None:
        while self._failure is None and self._hearing.Test(self._status):
            source, notice = self._status.source, Notice.decode(self._heard)
            self._listen()
            if notice.kind is NoticeKind.QUESTION:
                self._send_notices(Notice(NoticeKind.ANSWER, waiting_for, notice.round), [source])
            elif notice.kind is NoticeKind.ANSWER:
                self._inquiry.note(source, notice)
            else:
                failure = Failure.from_notice(source, notice, self.rank)
                self._gone[source] = time.monotonic(), failure
                if not failure.has_left:
                    self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        from mpi4py.run import set_abort_status

        self._failure = failure
        # The finalization of MPI would wait for the failed rank, without a deadline.
        set_abort_status(1)
        self._send_notices(
            failure.notice(),
            [peer for peer in self._others() if peer != failure.culprit],
        )

    def _note(self, peer: int, failure: Failure, context: WorkContext) -> PeerFailure:
        return self.peer_failure(peer, failure.found, context, culprit=failure.culprit)

    def _others(self) -> list[int]:
        """Returns the ranks that may still receive notices."""
        return [
            peer for peer in range(self.world_size) if peer != self.rank and peer not in self._gone
        ]

    def _send_notices(self, notice: Notice, peers: list[int]) -> None:
        """Sends a notice and polls until it was sent, for at most `_GRACE_SECONDS`."""
        message = notice.encode()
        requests = [
            self._communicator.Isend(self._message(message), peer, self._tag(NOTICE_TAG))
            for peer in peers
        ]
        limit, backoff = time.monotonic() + _GRACE_SECONDS, Backoff()
        while requests and not self.mpi.Request.Testall(requests) and time.monotonic() < limit:
            backoff.pause()


class _MpiWork(PolledWork):
    """A send, and the base class of a receive."""

    def __init__(self, owner: MpiCollective, request: Any, buffer: Array, peer: int) -> None:
        super().__init__(owner.deadline_seconds)
        self._owner = owner
        self._request = request
        self._buffer = buffer
        self._peer = peer
        self._context = owner.context

    def _is_complete_impl(self) -> bool:
        try:
            if not self._request.Test():
                return False
        except self._owner.mpi.Exception as error:
            raise self._owner.transport_failure(self._peer, error, self._context) from error
        self._owner.forget(self)
        return True

    def _failure_impl(self, limit: float, now: float) -> SparringError | None:
        return self._owner.wait_failure(self._peer, self._context, limit, now)

    def give_up(self) -> None:
        """Called when the collective closes. A send continues by itself."""


class _MpiReceiving(_MpiWork):
    def give_up(self) -> None:
        _cancel(self._request)

    def _is_complete_impl(self) -> bool:
        mpi = self._owner.mpi
        status = mpi.Status()
        try:
            if not self._request.Test(status):
                return False
        except mpi.Exception as error:
            self._owner.forget(self)
            if error.Get_error_class() == mpi.ERR_TRUNCATE:
                raise self._wrong_size("more") from error
            raise self._owner.transport_failure(self._peer, error, self._context) from error
        self._owner.forget(self)
        count = status.Get_count(mpi.BYTE)
        if count != self._buffer.nbytes:
            raise self._wrong_size(str(count))
        return True

    def _wrong_size(self, found: str) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"receive from rank {self._peer}: the buffer has {self._buffer.nbytes} bytes, the "
            f"message {found}; both sides must agree on the size"
        )


def _cancel(receive: Any) -> None:
    """Cancels a receive, unless its message has arrived."""
    receive.Cancel()
    receive.Wait()
