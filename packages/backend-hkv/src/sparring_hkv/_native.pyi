__version__: str

def create(
    *,
    row_bytes: int,
    capacity: int | None,
    memory_bytes: int | None,
    policy: str,
    hash_seed: int,
) -> object:
    """Opens a table and returns it as a capsule of ``storage_abi.h``.

    Raises:
        sparring.errors.InvalidArgumentError: an option is out of range.
        MemoryError: the system has no memory for it.
    """

def kernels() -> list[str]:
    """The SIMD kernels that this processor can run, the one in use first."""
