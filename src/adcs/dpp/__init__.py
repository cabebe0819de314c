"""DPP algorithms on arrays; independent of federated learning."""

from adcs.dpp.kernel import log_kernel

__all__ = ["log_kernel"]
