"""Many clients on one machine: data sets, partitions, models, a virtual network, and the engine.

>>> from adcs.schedulers import Uniform
>>> data = load("synthetic:clusters=2,dimension=3")
>>> federation = Federation(data, make_partition(data, "iid", 6, seed=0))
>>> simulation = Simulation(federation, MLP(3, 2), {"Uniform": Uniform()}, Training(m=2, lr=0.1))
>>> simulation.run(20)
>>> simulation.evaluate()[0]["updates"]
40
"""

from typing import TYPE_CHECKING, Any

from adcs.simulation.aggregation import Aggregation, ClippedMean, Mean, Median, TrimmedMean
from adcs.simulation.attacks import Attack, Truth
from adcs.simulation.costs import RoundCosts
from adcs.simulation.datasets import (
    Dataset,
    from_arrays,
    from_clients,
    from_folder,
    from_leaf,
    from_npz,
    from_partitions,
    load,
)
from adcs.simulation.engine import Simulation
from adcs.simulation.federation import Federation
from adcs.simulation.local_training import ClientResult, ClientWork, LocalSGD, LocalTraining
from adcs.simulation.models import MLP, Model
from adcs.simulation.network import Network, NetworkSettings
from adcs.simulation.partition import Partition, make_partition
from adcs.simulation.round_settings import RoundSettings
from adcs.simulation.run import Run
from adcs.simulation.scheduler_errors import SchedulerFailed, TrainingFailed
from adcs.simulation.trace import Trace, read_trace
from adcs.simulation.training import Training

if TYPE_CHECKING:
    from adcs.simulation.torch_models import TorchModel

__all__ = [
    "MLP",
    "Aggregation",
    "Attack",
    "ClientResult",
    "ClientWork",
    "ClippedMean",
    "Dataset",
    "Federation",
    "LocalSGD",
    "LocalTraining",
    "Mean",
    "Median",
    "Model",
    "Network",
    "NetworkSettings",
    "Partition",
    "RoundCosts",
    "RoundSettings",
    "Run",
    "SchedulerFailed",
    "Simulation",
    "TorchModel",
    "Trace",
    "Training",
    "TrainingFailed",
    "TrimmedMean",
    "Truth",
    "from_arrays",
    "from_clients",
    "from_folder",
    "from_leaf",
    "from_npz",
    "from_partitions",
    "load",
    "make_partition",
    "read_trace",
]


def __getattr__(name: str) -> Any:
    """Import what needs PyTorch when it is first used."""
    if name != "TorchModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from adcs.simulation.torch_models import TorchModel
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{name} needs PyTorch: pip install 'adcs[torch]'") from error
    return TorchModel
