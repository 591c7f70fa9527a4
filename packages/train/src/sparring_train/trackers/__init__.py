"""Experiment trackers: services and files that record the metrics of runs.

    driving thread   step │ log metrics │ step …
    one thread per tracker        └────► service

`contract` is what a tracker implements; `background` calls it; `run_trackers` collects the metrics.
"""
