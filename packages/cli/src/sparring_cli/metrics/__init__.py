"""Metrics that are counted in memory and exposed to Prometheus over HTTP or in a file."""
