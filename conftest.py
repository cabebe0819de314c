"""Leaves out the examples of modules whose library is missing."""

from importlib.util import find_spec

collect_ignore = [
    f"src/adcs/trackers/{name}.py"
    for name in ("mlflow", "tensorboard", "wandb")
    if find_spec(name) is None
]
