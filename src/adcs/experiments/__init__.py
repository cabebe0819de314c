"""Comparisons of schedulers on the simulator: settings, runs, statistics, tables, figures.

A run is made by `adcs compare`; its folder is read with `adcs.run_folder.RunFolder`,
`experiment_of` and `checked_records`. The statistics take records, the figures take statistics.
"""

from adcs.experiments.config import Experiment
from adcs.experiments.figures import (
    Bars,
    Dots,
    Map,
    bar_figure,
    dot_figure,
    heat_figure,
    line_figure,
)
from adcs.experiments.records import checked_records
from adcs.experiments.report import caption, panel, seeds_of, setting
from adcs.experiments.runner import experiment_of
from adcs.experiments.specs import make_scheduler
from adcs.experiments.statistics import (
    BOUNDS,
    FEWEST,
    LEVEL,
    Curves,
    Estimate,
    Record,
    corrected,
    curves,
    estimate,
    final_ratios,
    paired,
    summarise,
)
from adcs.experiments.styles import rival, styles_of
from adcs.experiments.wording import difference as format_difference
from adcs.experiments.wording import left_out_note, table_note
from adcs.experiments.wording import margin as format_margin
from adcs.experiments.wording import markdown as markdown_table
from adcs.experiments.wording import number as format_number
from adcs.experiments.wording import spread as format_estimate
from adcs.experiments.wording import table as summary_table

__all__ = [
    "BOUNDS",
    "FEWEST",
    "LEVEL",
    "Bars",
    "Curves",
    "Dots",
    "Estimate",
    "Experiment",
    "Map",
    "Record",
    "bar_figure",
    "caption",
    "checked_records",
    "corrected",
    "curves",
    "dot_figure",
    "estimate",
    "experiment_of",
    "final_ratios",
    "format_difference",
    "format_estimate",
    "format_margin",
    "format_number",
    "heat_figure",
    "left_out_note",
    "line_figure",
    "make_scheduler",
    "markdown_table",
    "paired",
    "panel",
    "rival",
    "seeds_of",
    "setting",
    "styles_of",
    "summarise",
    "summary_table",
    "table_note",
]
