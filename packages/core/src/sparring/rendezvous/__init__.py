"""Membership: the variables of a launcher, or a world of one."""
