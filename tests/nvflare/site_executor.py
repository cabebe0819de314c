"""Sites of a job on NVFlare's simulator, of which some fail."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

LATE = 25


class SiteExecutor(Executor):
    """Site i moves the model halfway to i; site 2 fails, 3 sends NaN, and 4 is late once."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks = 0

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        site = int(fl_ctx.get_identity_name().rpartition("-")[2])
        self.tasks += 1
        if site == 2:
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        if site == 4 and self.tasks == 1:
            time.sleep(LATE)
        w = FLModelUtils.from_shareable(shareable).params["numpy_key"]
        w = np.full_like(w, np.nan) if site == 3 else w + np.float32(0.5) * (site - w)
        return FLModelUtils.to_shareable(FLModel(params={"numpy_key": w}, metrics={"loss": 1.0}))
