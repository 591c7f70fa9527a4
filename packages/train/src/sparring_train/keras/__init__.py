"""Trains the models of a configuration with TensorFlow and Keras."""
