"""Trackers: observers that log a run to TensorBoard, MLflow or Weights & Biases.

A tracker is given to an engine as any observer: `adcs.compare(..., observers=[TensorBoard("tb")])`,
`Simulation(..., observers=...)` or `Scheduled(..., observers=...)`. Each scheduler and seed is a
run of the tracker, each number of a record a metric, and the step is the number of rounds done. A
run that is resumed gets each step once. The extra `trackers` brings the libraries.
"""

from adcs.trackers.mlflow import MLflow
from adcs.trackers.tensorboard import TensorBoard
from adcs.trackers.tracker import Tracker
from adcs.trackers.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB"]
