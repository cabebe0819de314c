"""Schedulers: policies that decide which clients train next, under one contract."""

from adcs.schedulers.active_fl import ActiveFL
from adcs.schedulers.adcs import ADCS
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.schedulers.client_dpp import ClientDPP, Determinantal
from adcs.schedulers.clustered_sampling import ClusteredSampling
from adcs.schedulers.constraints import CohortConstraints
from adcs.schedulers.divfl import DivFL
from adcs.schedulers.fedcor import FedCor
from adcs.schedulers.hics_fl import HiCSFL
from adcs.schedulers.live_adcs import LiveADCS
from adcs.schedulers.ocs import OCS
from adcs.schedulers.oort import Oort
from adcs.schedulers.power_of_choice import PowerOfChoice
from adcs.schedulers.snapshot import SnapshotScheduler
from adcs.schedulers.static_dpp import StaticDPP
from adcs.schedulers.uniform import Uniform

__all__ = [
    "ADCS",
    "OCS",
    "ActiveFL",
    "ClientDPP",
    "ClusteredSampling",
    "Cohort",
    "CohortConstraints",
    "Determinantal",
    "DivFL",
    "FedCor",
    "HiCSFL",
    "LiveADCS",
    "Oort",
    "PowerOfChoice",
    "Request",
    "Scheduler",
    "SnapshotScheduler",
    "Source",
    "StaticDPP",
    "Uniform",
]
