"""Tables that a lookup service serves."""
