"""Training data: MovieLens ratings, click logs in Criteo format, and a synthetic click log."""
