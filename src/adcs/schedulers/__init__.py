"""Policies that decide which clients train next: one a file, one contract for all."""

from adcs.schedulers.adcs import ADCS
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.schedulers.divfl import DivFL
from adcs.schedulers.live_adcs.scheduler import LiveADCS
from adcs.schedulers.ocs import OCS
from adcs.schedulers.power_of_choice import PowerOfChoice
from adcs.schedulers.static_dpp import StaticDPP
from adcs.schedulers.uniform import Uniform

__all__ = [
    "ADCS",
    "OCS",
    "Cohort",
    "DivFL",
    "LiveADCS",
    "PowerOfChoice",
    "Request",
    "Scheduler",
    "Source",
    "StaticDPP",
    "Uniform",
]
