"""The ``mpi`` collective of sparring: ranks that mpiexec started, over mpi4py.

It is chosen by name, as ``collective: {backend: mpi}`` or ``collective="mpi"``; ``auto`` chooses it for
ranks that mpiexec started.
"""

__all__: list[str] = []

__version__ = "0.1.0"
