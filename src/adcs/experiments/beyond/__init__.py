"""LiveADCS against the others at their best: cases in TOML, ablations, the verdict on each case."""
