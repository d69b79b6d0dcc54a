"""The whole contract of engines."""

from __future__ import annotations

from penstock.testing.contracts.engine.batches import BatchesContract
from penstock.testing.contracts.engine.context import ContextContract
from penstock.testing.contracts.engine.counters import CountersContract
from penstock.testing.contracts.engine.exactly_once import ExactlyOnceContract
from penstock.testing.contracts.engine.failing import FailingContract
from penstock.testing.contracts.engine.giving_up import GivingUpContract
from penstock.testing.contracts.engine.handing_over import HandingOverContract
from penstock.testing.contracts.engine.handling import HandlingContract
from penstock.testing.contracts.engine.lanes import LanesContract
from penstock.testing.contracts.engine.life import LifeContract
from penstock.testing.contracts.engine.rewinding import RewindingContract
from penstock.testing.contracts.engine.state import StateContract
from penstock.testing.contracts.engine.stopping import StoppingContract
from penstock.testing.contracts.engine.timers import TimersContract


class EngineContract(
    ExactlyOnceContract,
    StateContract,
    FailingContract,
    GivingUpContract,
    StoppingContract,
    RewindingContract,
    LanesContract,
    HandingOverContract,
    HandlingContract,
    ContextContract,
    BatchesContract,
    TimersContract,
    LifeContract,
    CountersContract,
):
    """All of it."""
