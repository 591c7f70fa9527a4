"""Layouts of tables: sharding kinds, and the layouts of one job by its plan."""
