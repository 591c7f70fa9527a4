"""The ``shm`` collective of sparring: shared memory between the ranks of one host.

``auto`` uses it in addition to the collective of the launcher, which connects the hosts.
"""

__all__: list[str] = []

__version__ = "0.1.0"
