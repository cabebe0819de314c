"""The benchmark of client schedulers: `make benchmark`.

protocol.py says what is run, results.py reads it into one table of numbers, and report.py writes
the tables, the verdicts and the figure.
"""
