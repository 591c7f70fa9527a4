"""Publishes snapshots of a run as serving snapshots."""
