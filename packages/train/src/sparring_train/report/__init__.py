"""The report about a finished run: one self-contained HTML file.

Drawing requires matplotlib, ``pip install 'sparring[report]'``, which is imported when a report is
written. Recording does not require it.
"""
