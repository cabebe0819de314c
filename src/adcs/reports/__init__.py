"""Client reports, their validation, quality scores, and sketches of updates.

Reports are untrusted input.
"""

from adcs.reports.form import Form
from adcs.reports.histogram import count_labels
from adcs.reports.quality import qualities
from adcs.reports.report import SIGNALS, ClientReport, Signal, validate_report
from adcs.reports.sketch import Sketch, Sketcher, Sketches, default_sketch
from adcs.reports.store import ReportStore
from adcs.reports.table import ReportTable

__all__ = [
    "SIGNALS",
    "ClientReport",
    "Form",
    "ReportStore",
    "ReportTable",
    "Signal",
    "Sketch",
    "Sketcher",
    "Sketches",
    "count_labels",
    "default_sketch",
    "qualities",
    "validate_report",
]
