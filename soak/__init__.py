"""A long run of all parts of the project under faults: `python -m soak --hours 0.5`.

Three ranks train a model from a stream, over a stack of a hash table, RocksDB and Redis, and publish
versions. Two serving shards of two replicas answer two clients. A parameter service learns from a third
client. Every minute there is one fault. At the end the rows are compared with a run without faults, and
the samples of memory, descriptors and threads are judged.
"""
