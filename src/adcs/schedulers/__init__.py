"""Schedulers: policies that decide which clients train next, under one contract."""

from adcs.schedulers.active_fl import ActiveFL
from adcs.schedulers.adcs import ADCS
from adcs.schedulers.base import Cohort, Request, Scheduler, Source
from adcs.schedulers.client_dpp import ClientDPP, Determinantal
from adcs.schedulers.clustered_sampling import ClusteredSampling
from adcs.schedulers.constraints import CohortConstraints
from adcs.schedulers.divfl import DivFL
from adcs.schedulers.fed_cbs import FedCBS
from adcs.schedulers.fedcor import FedCor
from adcs.schedulers.fedcs import FedCS
from adcs.schedulers.flips import FLIPS
from adcs.schedulers.hics_fl import HiCSFL
from adcs.schedulers.live_adcs import LiveADCS
from adcs.schedulers.ocs import OCS
from adcs.schedulers.oort import Oort
from adcs.schedulers.power_of_choice import PowerOfChoice
from adcs.schedulers.refl import REFL
from adcs.schedulers.snapshot import SnapshotScheduler
from adcs.schedulers.static_dpp import StaticDPP
from adcs.schedulers.tifl import TiFL
from adcs.schedulers.uniform import Uniform

__all__ = [
    "ADCS",
    "FLIPS",
    "OCS",
    "REFL",
    "ActiveFL",
    "ClientDPP",
    "ClusteredSampling",
    "Cohort",
    "CohortConstraints",
    "Determinantal",
    "DivFL",
    "FedCBS",
    "FedCS",
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
    "TiFL",
    "Uniform",
]
