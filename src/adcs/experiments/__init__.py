"""Comparisons of schedulers on the simulator, and the paper's figures and tables."""
