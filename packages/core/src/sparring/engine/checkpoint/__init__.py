"""Snapshots of a training that runs: one step of all tables, while later steps go on.

save              ranks agree on a save, tables are frozen, a job is started
save_manager      the job of one rank, its share of a core, and which save runs
copy_on_write     rows of one table as they were at one moment, though steps change them
load              ranks agree on a load, and take over the rows that they own
load_manager      which load runs
flush             rows are made durable
container_state   counters of the container and of admission filters
"""
