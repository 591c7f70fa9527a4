"""Lookups: from the ids of a batch to embeddings, and gradients back to the step."""
