"""The exchange between ranks, replayed on more ranks than are here, in simulated time."""
