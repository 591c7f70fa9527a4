"""Rendezvous of core: from the variables of a launcher, or with a single rank."""
