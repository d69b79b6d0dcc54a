"""The whole contract of engines."""

from __future__ import annotations

from headrace.testing.contracts.engine.batches import BatchesContract
from headrace.testing.contracts.engine.context import ContextContract
from headrace.testing.contracts.engine.counters import CountersContract
from headrace.testing.contracts.engine.exactly_once import ExactlyOnceContract
from headrace.testing.contracts.engine.failing import FailingContract
from headrace.testing.contracts.engine.giving_up import GivingUpContract
from headrace.testing.contracts.engine.handing_over import HandingOverContract
from headrace.testing.contracts.engine.handling import HandlingContract
from headrace.testing.contracts.engine.lanes import LanesContract
from headrace.testing.contracts.engine.life import LifeContract
from headrace.testing.contracts.engine.rewinding import RewindingContract
from headrace.testing.contracts.engine.state import StateContract
from headrace.testing.contracts.engine.stopping import StoppingContract
from headrace.testing.contracts.engine.timers import TimersContract


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
    """Every contract of engines but `DyingContract`, which needs a hub in a directory."""
