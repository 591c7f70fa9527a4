"""Key operations: deduplication of ids, pooling of rows, and their gradients."""
