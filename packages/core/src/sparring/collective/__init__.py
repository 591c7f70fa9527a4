"""How ranks exchange buffers: the contract, and ranks as threads of one process."""
