"""The exchange between ranks: rows from their owners, gradients to them."""
