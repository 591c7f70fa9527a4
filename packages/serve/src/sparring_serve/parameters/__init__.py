"""The role `parameters`: a service with trainable tables, updated by pushed gradients."""
