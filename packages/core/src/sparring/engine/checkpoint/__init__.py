"""Snapshots of a training that runs: one step of all tables, while later steps go on.

save              ranks agree on a save, tables are frozen, a job is started
save_manager      the job of one rank, and which save runs
copy_on_write     rows of one table as they were at one moment, though steps change them
undo_rows         old rows that a save still needs: their memory, and the share of a core that it takes
write_log         which keys change: for a save, and since the base of a delta
load              ranks agree on a load, and take over the rows that they own
load_manager      which load runs
flush             rows are made durable
container_state   counters of the container and of admission filters
agreement         how a failure on one rank becomes known to all
requests          options and results
"""
