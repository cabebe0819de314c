"""Data sets by name, and those of one's own."""
