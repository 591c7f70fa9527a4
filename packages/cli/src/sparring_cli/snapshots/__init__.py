"""Checks and conversions of whole snapshots: verify, summarize, export, import."""
