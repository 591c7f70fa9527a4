"""Threads, time, events and devices: what every other room stands on."""
