"""Metrics: counted in memory, exposed to Prometheus over HTTP or in a file."""
