"""Threads, background work, device streams, tracing and object lifecycle, for all other layers."""
