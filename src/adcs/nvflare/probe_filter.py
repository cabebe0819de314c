"""The client's side: a filter that answers probes with the client's own training."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReturnCode
from nvflare.apis.shareable import Shareable
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.job_config.defs import FilterType

from adcs.federated.messages import SentModel
from adcs.federated.probes import ANSWER, QUESTION, ProbeQuestion, answer_probe
from adcs.nvflare.replies import read_params
from adcs.nvflare.results import leave_out_adcs, read_result

AT_CLIENT = frozenset({"values", "shapes"})
"""What is checked before an update is sketched; the server checks the rest."""

_SENT = "adcs.sent"


class ProbeFilter(Filter):  # type: ignore[misc]
    """Answer a scheduler's probes for sketches and norms; pass everything else on.

    A probe is a training task. The client trains as it always does, and this filter replaces the
    result by a sketch of the update, its norm, the loss and the number of steps. What the training
    script keeps between tasks is not protected. Filters act in the order in which they were added:
    add this one after those that protect privacy, so that it sketches what they let through.

    Examples
    --------
    >>> from nvflare.job_config.api import FedJob
    >>> FedJob(name="digits").to_clients(ProbeFilter())
    """

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Add the filter to a job, for what clients receive and for what they send.

        Parameters
        ----------
        job, ctx
            The job and its context.
        **kwargs
            tasks, the names of the training tasks; by default "train".
        """
        job.check_kwargs(args_to_check=kwargs, args_expected={"tasks": False})
        tasks = kwargs.get("tasks", ["train"])
        leave_out_adcs(job)
        for kind in (FilterType.TASK_DATA, FilterType.TASK_RESULT):
            job.add_filter(obj=self, filter_type=kind, tasks=tasks, ctx=ctx)

    def process(self, shareable: Any, fl_ctx: Any) -> Any:
        """Keep the model of a probe on its way in, and answer the probe on its way out."""
        if fl_ctx.get_prop(FLContextKey.FILTER_DIRECTION) == FilterKey.IN:
            self._keep(shareable, fl_ctx)
            return shareable
        kept = fl_ctx.get_prop(_SENT)
        if kept is None or shareable.get_return_code(ReturnCode.OK) != ReturnCode.OK:
            return shareable
        question, model, started = kept
        return _answer(shareable, question, model, time.perf_counter() - started)

    def _keep(self, shareable: Any, fl_ctx: Any) -> None:
        wire = shareable.get_header(QUESTION)
        kept = None
        if wire is not None:
            question = ProbeQuestion.decode(wire)
            params = read_params(FLModelUtils.from_shareable(shareable).params)
            # A script in this process may change the arrays that it is given.
            copies = {key: np.array(value) for key, value in params.items()}
            kept = (question, SentModel(copies, question.arrays), time.perf_counter())
        fl_ctx.set_prop(_SENT, kept, private=True, sticky=False)


def _answer(shareable: Any, question: ProbeQuestion, model: SentModel, seconds: float) -> Any:
    """Return the answer to a probe in place of the result of training."""
    trained = read_result(shareable)

    def update() -> list[Any]:
        return model.update(trained.checked_arrays(model, AT_CLIENT))

    reply = Shareable()
    reply.set_return_code(ReturnCode.OK)
    reply.set_header(ANSWER, answer_probe(question, trained.metrics, update, seconds))
    return reply
