"""Planning: which kind of sharding each table has, and the ranks that own its shards."""
