"""Trains models of configurations with TensorFlow and Keras."""
