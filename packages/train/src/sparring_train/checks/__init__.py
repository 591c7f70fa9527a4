"""Checks before a long run, for ``sparring doctor --job``. They change nothing permanently.

`job` lists the checks of a configuration, `places` tests folders and URLs, `machine` this machine.
"""
