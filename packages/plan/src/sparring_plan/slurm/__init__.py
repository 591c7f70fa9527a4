"""Generates batch scripts for Slurm."""
