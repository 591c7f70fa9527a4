"""Lookups: from ids to embeddings, by operators of TensorFlow."""
