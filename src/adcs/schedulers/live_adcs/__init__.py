"""LiveADCS: ADCS kept current by training replies; docs/beyond.md has the method."""

from adcs.schedulers.live_adcs.scheduler import LiveADCS

__all__ = ["LiveADCS"]
