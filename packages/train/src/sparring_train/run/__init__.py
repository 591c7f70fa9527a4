"""One run: its ranks, plan, snapshots, storages, logs and result."""
