"""Lets Ray's processes start on a busy machine: at the priority of the tests, and within two minutes."""

import os

os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
