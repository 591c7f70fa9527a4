"""The tables of a rank: declaration, storages, and what is recorded about writes."""
