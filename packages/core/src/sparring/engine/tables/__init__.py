"""The tables of a rank: declaration, storages, and observers of writes."""
