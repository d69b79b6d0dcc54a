"""The contract of consumers. A backend without groups must refuse them with the reason."""

from __future__ import annotations

from headrace.testing.contracts.group_reading import FixedShardsContract, ReadingAsAGroupContract
from headrace.testing.contracts.hand_over import HandOverContract
from headrace.testing.contracts.marks import MarksContract
from headrace.testing.contracts.sharing import SharingContract


class ConsumerContract(
    FixedShardsContract,
    ReadingAsAGroupContract,
    MarksContract,
    SharingContract,
    HandOverContract,
):
    """Every contract of consumers."""
