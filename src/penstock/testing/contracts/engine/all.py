"""The whole contract of engines."""

from __future__ import annotations

from penstock.testing.contracts.engine.exactly_once import ExactlyOnceContract
from penstock.testing.contracts.engine.failing import FailingContract
from penstock.testing.contracts.engine.giving_up import GivingUpContract
from penstock.testing.contracts.engine.handing_over import HandingOverContract
from penstock.testing.contracts.engine.lanes import LanesContract
from penstock.testing.contracts.engine.stopping import StoppingContract


class EngineContract(
    ExactlyOnceContract,
    FailingContract,
    GivingUpContract,
    StoppingContract,
    LanesContract,
    HandingOverContract,
):
    """All of it."""
