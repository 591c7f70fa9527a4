"""Plugins of installed distributions: discovery, checks and lookup of descriptors by name."""
