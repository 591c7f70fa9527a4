"""Tables and batches on a device: kernels, memory, streams, and the path of lookups."""
