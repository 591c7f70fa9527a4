"""Snapshots of a running training: all tables at one step, while later steps continue.

save              ranks agree on a save, freeze the tables and start a job
save_manager      the job of one rank, its share of a core, and the current save
copy_on_write     the rows of one table at one moment, while steps change them
load              ranks agree on a load, and load the rows that they own
load_manager      the current load
flush             makes rows durable
container_state   counters of the container and of admission filters
"""
