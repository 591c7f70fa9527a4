"""Writes the counters of a run to a file while it goes on.

    driving thread   step │ copy numbers, if it is time │ step …
    event loop                                     └────► file

`container_metrics` copies, `json_lines` and `prometheus` write or show, `writer` says when.
"""
