"""The report on a finished run: one HTML file that needs nothing else.

Drawing needs matplotlib, ``pip install 'sparring[report]'``; it is imported when a report is
written. Recording does not need it.
"""

from sparring.report.page import write_report
from sparring.report.progress import RecordingProgress
from sparring.report.recorder import RunRecorder, Series

__all__ = ["RecordingProgress", "RunRecorder", "Series", "write_report"]
