"""Five sites with different digits on NVFlare's simulator, with a scheduler that selects three.

    python job.py --folder runs/digits --rounds 8

prints each round's cohort and the accuracies of the sites. Running it again with the same folder
continues with the saved model and scheduler.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.app_common.widgets.intime_model_selector import IntimeModelSelector
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import ScriptRunner

from adcs.nvflare import ProbeFilter, ScheduledFedAvg
from adcs.run_folder import RunFolder

SITES = 5
PIXELS, CLASSES = 64, 10
CLIENT = Path(__file__).with_name("client.py")


def make_job(folder: Path, scheduler: str, rounds: int, clients: int, **settings: Any) -> FedJob:
    job = FedJob(name="digits", min_clients=2)
    controller = ScheduledFedAvg(
        scheduler=scheduler,
        num_clients=clients,
        num_rounds=rounds,
        folder=str(folder.resolve()),
        evaluate_every=1,
        **settings,
    )
    job.to_server(controller)
    job.to_server(NPModelPersistor(model=[[0.0] * CLASSES] * (PIXELS + 1)), id="persistor")
    job.to_server(IntimeModelSelector(key_metric="accuracy"), id="model_selector")
    runner = ScriptRunner(str(CLIENT), framework=FrameworkType.NUMPY)
    job.to_clients(runner)
    job.to_clients(ProbeFilter())
    return job


def print_rounds(folder: Path) -> None:
    for line in RunFolder.open(folder).records():
        probed = f", probed {len(line['probed'])}" if line["probed"] else ""
        print(
            f"round {line['server_round']}: {', '.join(line['trained'])}{probed}; "
            f"accuracy worst {line['worst']:.3f}, average {line['average']:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/nvflare-digits"))
    parser.add_argument("--scheduler", default="ADCS(theta=0.5, refresh_every=2, sketch=64)")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--clients", type=int, default=3)
    options = parser.parse_args()
    job = make_job(options.folder, options.scheduler, options.rounds, options.clients)
    with tempfile.TemporaryDirectory() as workspace:
        job.simulator_run(workspace, n_clients=SITES, threads=SITES)
    print_rounds(options.folder)


if __name__ == "__main__":
    main()
