"""What a scheduler can know about a client: reports, quality scores, sketches of updates."""
