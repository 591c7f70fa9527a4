"""A rendezvous of ranks in Redis.

    sparring:{meeting:job}:seat:3         token and host of the rank that has taken seat 3
    sparring:{meeting:job}:value:run      the value that a rank set for 'run'
    sparring:{meeting:job}:number:3       random number of rank 3, if torchrun started it
    sparring:{meeting:job}:numbers        list of the numbers of all ranks

Without `world_size`, the launcher's variables specify the rank, and Redis is used only as the store.
Ranks of torchrun then agree on names that no earlier start of the job has used: each writes a random
number, rank 0 writes the list of all numbers, and each confirms that the list contains its own number.
TORCHELASTIC_RESTART_COUNT cannot separate the starts, because each agent of torchrun counts its own.

With `world_size`, ranks take seats in the order of arrival. A rank takes a seat with ``SET … NX`` and its
own token. If the reply is lost, it repeats the command, finds its token and knows that it has the seat; a
counter could not provide that.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
import uuid
from typing import Any

from redis.crc import key_slot

from sparring.contracts import EnvironmentOptions, Membership, Rendezvous, read_membership
from sparring.errors import DeadlineError, InvalidArgumentError
from sparring_redis.connections.client import Command
from sparring_redis.connections.client_factory import open_client
from sparring_redis.connections.connection import encode_command
from sparring_redis.connections.deadline import Deadline
from sparring_redis.options import RedisRendezvousOptions

__all__ = ["RedisRendezvous"]

_NUMBER = uuid.uuid4().hex.encode()
"""Differs between two starts of a rank."""
_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.002, 0.1


class RedisRendezvous(Rendezvous):
    """The rendezvous of one job.

    Raises:
        InvalidArgumentError: the launcher's variables are missing or invalid, all seats of this job are
            taken, or `world_size` is set in a job of torchrun.
        DeadlineError: Redis did not reply, or not all ranks arrived within `start_seconds`.
        StorageIOError: Redis failed.
    """

    def __init__(self, options: RedisRendezvousOptions) -> None:
        self._options = options
        is_elastic = "TORCHELASTIC_RUN_ID" in os.environ
        if is_elastic and options.world_size is not None:
            raise InvalidArgumentError(
                f"rendezvous 'redis': found world_size {options.world_size} in a job of torchrun, "
                "which numbers the ranks itself; remove world_size"
            )
        self._name = f"{options.prefix}:{{meeting:{options.job}}}"
        self._slot = key_slot(f"{self._name}:".encode())
        self._client = open_client(options, f"meeting {options.job!r}")
        try:
            if options.world_size is None:
                self._membership = read_membership(
                    os.environ, EnvironmentOptions(device=options.device)
                )
                if is_elastic:
                    self._name = self._agree_on_name()
            else:
                self._membership = self._take_seat(options.world_size)
        except BaseException:
            self._client.close()
            raise

    def membership(self) -> Membership:
        return self._membership

    def set(self, key: str, value: bytes) -> None:
        self._write(f"{self._name}:value:{key}", bytes(value))

    def get(self, key: str, timeout_seconds: float) -> bytes:
        end = time.monotonic() + timeout_seconds
        wait = _SHORTEST_WAIT_SECONDS
        while True:
            # The first request is always sent, because an existing value requires no waiting.
            left = max(end - time.monotonic(), _LONGEST_WAIT_SECONDS)
            deadline = Deadline(min(left, self._client.deadline_seconds))
            value = self._run("get", "GET", f"{self._name}:value:{key}", deadline=deadline)
            if value is not None:
                return bytes(value)
            left = end - time.monotonic()
            if left <= 0:
                raise DeadlineError(
                    f"rendezvous 'redis': no rank set {key!r} of job {self._options.job!r} within "
                    f"{timeout_seconds:g} s; see whether all ranks run, with the same job and Redis",
                    key=key,
                )
            time.sleep(min(wait, left))
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    def close(self) -> None:
        """Closes the connection. Values stay until they expire, because other ranks may need them."""
        self._client.close()

    # -- starts of torchrun ---------------------------------------------------

    def _agree_on_name(self) -> str:
        """Returns a prefix of names that only ranks that run now have."""
        rank, world_size = self._membership.rank, self._membership.world_size
        numbers = [f"{self._name}:number:{each}" for each in range(world_size)]
        arrival, wait, proposed = Deadline(self._options.start_seconds), _SHORTEST_WAIT_SECONDS, b""
        self._write(numbers[rank], _NUMBER)
        while True:
            if rank == 0:
                found = self._run("list ranks", "MGET", *numbers)
                # Again if a number changes, because that of a rank that has ended may still be there.
                if None not in found and (listed := b",".join(found)) != proposed:
                    proposed = listed
                    self._write(f"{self._name}:numbers", proposed)
            else:
                proposed = self._run("list ranks", "GET", f"{self._name}:numbers") or b""
            members = proposed.split(b",")
            if len(members) == world_size and members[rank] == _NUMBER:
                name = f"{self._name}:{hashlib.blake2b(proposed, digest_size=16).hexdigest()}"
                confirmed = [f"{name}:confirmed:{each}" for each in range(world_size)]
                self._write(confirmed[rank], b"1")
                if rank == 0 and None not in self._run("list ranks", "MGET", *confirmed):
                    self._write(f"{name}:agreed", b"1")
                if self._run("list ranks", "GET", f"{name}:agreed") is not None:
                    return name
            if arrival.is_over:
                raise DeadlineError(
                    f"rendezvous 'redis': not all of {world_size} ranks of job "
                    f"{self._options.job!r} started within {arrival.seconds:g} s; see whether all "
                    "ranks run, with the same job and Redis, or raise start_seconds",
                    job=self._options.job,
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    # -- seats ----------------------------------------------------------------

    def _take_seat(self, world_size: int) -> Membership:
        token = json.dumps({"rank": uuid.uuid4().hex, "host": socket.gethostname()}).encode()
        seconds = self._options.time_to_live_seconds
        arrival = Deadline(self._options.start_seconds)
        for rank in range(world_size):
            try:
                part = Deadline(min(self._client.deadline_seconds, arrival.remaining()))
            except TimeoutError:
                raise DeadlineError(
                    f"rendezvous 'redis': found no free seat of job {self._options.job!r} within "
                    f"{arrival.seconds:g} s, {rank} of {world_size} were checked; see whether "
                    "Redis is overloaded or far away, or raise start_seconds",
                    job=self._options.job,
                ) from None
            seat = self._seat(rank)
            self._run("take a seat", "SET", seat, token, "EX", seconds, "NX", deadline=part)
            if self._run("take a seat", "GET", seat, deadline=part) == token:
                return self._wait_for_ranks(rank, world_size, arrival)
        raise InvalidArgumentError(
            f"rendezvous 'redis': all {world_size} seats of job {self._options.job!r} are taken; "
            "set a different job name, or raise world_size"
        )

    def _wait_for_ranks(self, rank: int, world_size: int, arrival: Deadline) -> Membership:
        """Waits for all other ranks, because the local rank depends on their hosts."""
        wait = _SHORTEST_WAIT_SECONDS
        while True:
            seats = self._run("list seats", "MGET", *map(self._seat, range(world_size)))
            num_taken = sum(seat is not None for seat in seats)
            if num_taken == world_size:
                break
            if arrival.is_over:
                raise DeadlineError(
                    f"rendezvous 'redis': {num_taken} of {world_size} ranks joined job "
                    f"{self._options.job!r} within {self._options.start_seconds:g} s; start the "
                    "others, or raise start_seconds",
                    job=self._options.job,
                )
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        hosts = [json.loads(seat)["host"] for seat in seats]
        local_rank = hosts[:rank].count(hosts[rank])
        return Membership(
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            local_world_size=hosts.count(hosts[rank]),
            device="cpu" if self._options.device == "cpu" else f"cuda:{local_rank}",
        )

    def _seat(self, rank: int) -> str:
        return f"{self._name}:seat:{rank}"

    def _write(self, name: str, value: bytes) -> None:
        self._run("set", "SET", name, value, "EX", self._options.time_to_live_seconds)

    def _run(self, operation: str, *words: Any, deadline: Deadline | None = None) -> Any:
        """Runs one command. All commands of this class are repeatable."""
        command = Command(self._slot, encode_command(words))
        is_write = words[0] == "SET"
        return self._client.run([command], operation, is_write=is_write, deadline=deadline)[0]
