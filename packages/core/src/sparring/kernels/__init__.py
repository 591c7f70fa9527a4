"""Key operations: from ids to keys, from rows to bags, and back."""
