"""Sections of a configuration."""
