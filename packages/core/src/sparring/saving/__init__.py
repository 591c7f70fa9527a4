"""Snapshots of a training that runs: one step of all tables, while later steps go on.

freezing   what the rows of one table were at one moment, though steps change them
changes    which keys changed since the base of a delta
saving     what a rank writes of a snapshot
loading    how a rank takes over what it owns of one
"""
