"""Trains models of configurations with PyTorch."""
