"""Leaves out the examples of modules whose library is missing."""

from importlib.util import find_spec

collect_ignore = [
    *(
        f"src/adcs/trackers/{name}.py"
        for name in ("mlflow", "tensorboard", "wandb")
        if find_spec(name) is None
    ),
    *(
        f"{name}.py"
        for name in (
            "src/adcs/nvflare/controller",
            "src/adcs/nvflare/probe_filter",
            "src/adcs/nvflare/results",
            "tests/nvflare/site_executor",
        )
        if find_spec("nvflare") is None
    ),
]
