"""Replays the exchange between ranks in simulated time, for more ranks than this machine has."""
