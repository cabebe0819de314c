"""LiveADCS: ADCS kept current by training replies; docs/evidence/beyond.md has the method."""

from adcs.schedulers.live_adcs.kernel import LiveKernel
from adcs.schedulers.live_adcs.loss_tracker import LossTracker, clip_outliers
from adcs.schedulers.live_adcs.probe_budget import ProbeBudget
from adcs.schedulers.live_adcs.quality import MAX_QUALITY, standardised_loss
from adcs.schedulers.live_adcs.scheduler import EMPHASIS_POWER, LiveADCS
from adcs.schedulers.live_adcs.share_limit import ShareLimit
from adcs.schedulers.live_adcs.waiting import WaitingRule

__all__ = [
    "EMPHASIS_POWER",
    "MAX_QUALITY",
    "LiveADCS",
    "LiveKernel",
    "LossTracker",
    "ProbeBudget",
    "ShareLimit",
    "WaitingRule",
    "clip_outliers",
    "standardised_loss",
]
