"""Comparisons of schedulers on the simulator: settings, runs, statistics, tables, figures.

`compare` runs schedulers side by side and returns a `Comparison`; a `Sweep` runs one scheduler over
a `Grid` of settings, and `merge_parts` merges the parts that a batch queue ran.
`create_run` and `run_experiment` make a run folder; `experiment_of` and `checked_records` read it.
Statistics take records, tables and figures take statistics.

>>> records = [
...     {"scheduler": name, "seed": 0, "server_round": 0, "worst": worst}
...     for name, worst in (("Uniform", 0.5), ("ADCS", 0.6))
... ]
>>> print(markdown_table(*summary_table(summarise(records, ["Uniform", "ADCS"]))))
| scheduler | worst |
|---|---|
| Uniform | 0.500 |
| ADCS | 0.600 |
"""

from adcs.experiments.comparison import Comparison, Difference, Differences, compare
from adcs.experiments.config import Experiment
from adcs.experiments.figures import (
    Bars,
    Line,
    Map,
    Panel,
    bar_figure,
    heat_figure,
    line_figure,
)
from adcs.experiments.merge import merge_parts
from adcs.experiments.records import checked_records
from adcs.experiments.report import caption, panel, seeds_of, setting, write_report
from adcs.experiments.runner import create_run, experiment_of, run_experiment
from adcs.experiments.specs import make_scheduler
from adcs.experiments.statistics import (
    BOUNDS,
    FEWEST,
    LEVEL,
    METRICS,
    Curves,
    Estimate,
    Metric,
    Record,
    Row,
    corrected,
    curves,
    estimate,
    final_ratios,
    paired,
    summarise,
)
from adcs.experiments.styles import Style, styles_of
from adcs.experiments.sweep import Grid, Point, Sweep
from adcs.experiments.tables import (
    format_difference,
    format_estimate,
    format_margin,
    format_number,
    left_out_note,
    markdown_table,
    summary_table,
    table_note,
)

__all__ = [
    "BOUNDS",
    "FEWEST",
    "LEVEL",
    "METRICS",
    "Bars",
    "Comparison",
    "Curves",
    "Difference",
    "Differences",
    "Estimate",
    "Experiment",
    "Grid",
    "Line",
    "Map",
    "Metric",
    "Panel",
    "Point",
    "Record",
    "Row",
    "Style",
    "Sweep",
    "bar_figure",
    "caption",
    "checked_records",
    "compare",
    "corrected",
    "create_run",
    "curves",
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
    "merge_parts",
    "paired",
    "panel",
    "run_experiment",
    "seeds_of",
    "setting",
    "styles_of",
    "summarise",
    "summary_table",
    "table_note",
    "write_report",
]
