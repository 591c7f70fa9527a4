"""Plugins of installed distributions: discovery, checks, and descriptors by name."""
