"""Trains the models of a configuration with PyTorch."""
