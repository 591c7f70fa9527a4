"""The ``mpi`` collective of sparring, which connects ranks started by mpiexec over mpi4py.

Choose it by name with ``collective: {backend: mpi}`` or ``collective="mpi"``. ``auto`` chooses it for
ranks that mpiexec started.
"""

__all__: list[str] = []

__version__ = "0.1.0"
