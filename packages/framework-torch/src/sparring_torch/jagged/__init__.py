"""Jagged and keyed tensors: the ids of a batch, and pooled embeddings."""
