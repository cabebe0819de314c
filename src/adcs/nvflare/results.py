"""What server and clients share of NVFlare: results as replies, and the making of jobs."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.app_common.abstract.fl_model import ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from adcs.federated.messages import clean_text
from adcs.federated.probes import ANSWER
from adcs.nvflare.replies import FlareReply


def read_result(result: Any, peer: Any = None) -> FlareReply:
    """Return the reply in a result of NVFlare's.

    Parameters
    ----------
    result
        The `Shareable`.
    peer
        The context of the client, for NVFlare's events.

    Examples
    --------
    >>> from nvflare.apis.shareable import make_reply
    >>> read_result(make_reply(ReturnCode.EXECUTION_EXCEPTION)).error
    'EXECUTION_EXCEPTION'
    """
    code = result.get_return_code()
    if code and code != ReturnCode.OK:
        return FlareReply(error=clean_text(code))
    answer = result.get_header(ANSWER)
    if isinstance(answer, dict):
        return FlareReply(answer=answer)
    try:
        model = FLModelUtils.from_shareable(result)
    except Exception as error:  # A damaged or hostile result fails in many ways.
        return FlareReply(error=f"result cannot be read: {clean_text(error)}")
    return FlareReply(
        model.params,
        model.metrics,
        model.meta,
        is_diff=model.params_type == ParamsType.DIFF,
        origin=(model, result, peer),
    )


def leave_out_adcs(job: Any) -> None:
    """Keep NVFlare from copying this library into a job: it is installed at server and clients."""
    packages = job.job.app_packages
    if "adcs" not in packages:
        job.set_app_packages([*packages, "adcs"])
