"""Planning: selects the kind of sharding for each table, and the ranks that own its shards."""
