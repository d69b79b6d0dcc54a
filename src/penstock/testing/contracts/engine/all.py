"""The whole contract of engines."""

from __future__ import annotations

from penstock.testing.contracts.engine.exactly_once import ExactlyOnceContract
from penstock.testing.contracts.engine.failing import FailingContract
from penstock.testing.contracts.engine.giving_up import GivingUpContract
from penstock.testing.contracts.engine.stopping import StoppingContract


class EngineContract(
    ExactlyOnceContract,
    FailingContract,
    GivingUpContract,
    StoppingContract,
):
    """All of it."""
