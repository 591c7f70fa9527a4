"""Three ranks on two hosts, each of which waits for the rank before it in a circle.

    mpiexec -n 3 python ranks_in_a_circle.py

Rank 0 waits for rank 1 of its host, which waits for rank 2 of another host, which waits for rank 0. MPI
sends the large message of rank 0 only while rank 0 polls it.
"""

from __future__ import annotations

import numpy as np

from sparring.adapter import EnvironmentRendezvous
from sparring.contracts import EnvironmentOptions
from sparring_mpi.collective import join_mpi
from sparring_shm.meeting import connect_local_ranks

if __name__ == "__main__":
    mpi = join_mpi(EnvironmentRendezvous(EnvironmentOptions()).membership(), 5.0)
    with connect_local_ranks(mpi, host="aab"[mpi.rank]) as collective:
        rank = collective.rank
        outgoing, incoming = np.full(8 << 20, rank, np.uint8), np.empty(8 << 20, np.uint8)
        sending = None if rank else collective.send(outgoing, 2)
        collective.receive(incoming, (rank + 1) % 3).wait()
        (sending or collective.send(outgoing, (rank - 1) % 3)).wait()
        assert (incoming == (rank + 1) % 3).all()
        print("received")
        collective.barrier()
