"""Job of a rank: joining, sharding plan, settings and memory budget."""
