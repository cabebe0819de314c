"""Determinantal mathematics on arrays. Nothing here has heard of clients."""
