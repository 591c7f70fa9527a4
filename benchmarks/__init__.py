"""Benchmarks: ours beside theirs in one run, on the same inputs, after checking that results agree."""
