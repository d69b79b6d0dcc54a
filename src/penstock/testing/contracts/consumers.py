"""The contract of consumers, on every backend that has groups; elsewhere of their refusal."""

from __future__ import annotations

from penstock.testing.contracts.group_reading import FixedShardsContract, ReadingAsAGroupContract
from penstock.testing.contracts.hand_over import HandOverContract
from penstock.testing.contracts.marks import MarksContract
from penstock.testing.contracts.sharing import SharingContract


class ConsumerContract(
    FixedShardsContract,
    ReadingAsAGroupContract,
    MarksContract,
    SharingContract,
    HandOverContract,
):
    """All of it."""
