"""The report on a finished run: one HTML file that needs nothing else.

Drawing needs matplotlib, ``pip install 'sparring[report]'``; it is imported when a report is
written. Recording does not need it.
"""
