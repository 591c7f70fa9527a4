"""Contracts between ranks: collective, rendezvous, layouts and exchange options."""
