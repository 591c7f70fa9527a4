"""Compares what a service logged with the data of the training, bit by bit."""
