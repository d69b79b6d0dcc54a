"""The contract of engines, on lanes that are processes: where that makes a difference. All of it is
in `every_process.py`: ``make engines``."""

from __future__ import annotations

import pytest

from penstock.testing.contracts.engine.exactly_once import ExactlyOnceContract
from penstock.testing.contracts.engine.giving_up import GivingUpContract
from penstock.testing.contracts.engine.handing_over import HandingOverContract
from penstock.testing.contracts.engine.stopping import StoppingContract
from tests.engine.every_process import InProcesses


@pytest.mark.slow
class TestProcesses(
    InProcesses, ExactlyOnceContract, HandingOverContract, StoppingContract, GivingUpContract
):
    """What is lost, doubled, handed over, stopped and given up."""
