"""Leaves out the examples of modules whose library is missing."""

from importlib.util import find_spec

collect_ignore = [
    *(
        f"src/adcs/trackers/{name}.py"
        for name in ("mlflow", "tensorboard", "wandb")
        if find_spec(name) is None
    ),
    *(
        f"src/adcs/nvflare/{name}.py"
        for name in ("controller", "probe_filter", "results")
        if find_spec("nvflare") is None
    ),
]
