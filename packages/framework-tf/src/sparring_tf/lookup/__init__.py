"""Lookups of embeddings by ids, implemented as TensorFlow ops."""
