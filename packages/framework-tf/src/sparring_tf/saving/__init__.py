"""Saving and loading of rows with checkpoints, SavedModels and Keras files."""
