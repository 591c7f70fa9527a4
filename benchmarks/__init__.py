"""Benchmarks that compare sparring with other libraries in one run, on the same inputs and results."""
