"""Faults of disks, links and processes."""
