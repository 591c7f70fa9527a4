"""Several ranks: collective, rendezvous, and the wrapper of a model."""
