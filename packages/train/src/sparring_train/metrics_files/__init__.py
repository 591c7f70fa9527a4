"""Writes the counters of a run to a file during training.

    driving thread   step │ copy numbers, if it is time │ step …
    event loop                                     └────► file

`container_metrics` copies counters, `json_lines` and `prometheus` are formats, `writer` schedules writes.
"""
