"""The contract of a backend, `Log` and `GroupStore`, and of a hub on top of it.

What a backend lacks by its published capabilities it must refuse with `Unsupported` and the reason;
no test asks which backend it runs on.
"""

from __future__ import annotations

from headrace.testing.contracts.appending import AppendingContract
from headrace.testing.contracts.backend_under_test import Opening
from headrace.testing.contracts.commits import CommitContract
from headrace.testing.contracts.consumers import ConsumerContract
from headrace.testing.contracts.copying import CopyingContract
from headrace.testing.contracts.hub import HubContract
from headrace.testing.contracts.liveness import LivenessContract
from headrace.testing.contracts.reading import ReadingContract
from headrace.testing.contracts.records import RecordsContract
from headrace.testing.contracts.store import StoreContract
from headrace.testing.contracts.streams import StreamsContract

__all__ = ["BackendContract", "Opening"]


class BackendContract(
    StreamsContract,
    RecordsContract,
    StoreContract,
    CommitContract,
    CopyingContract,
    HubContract,
    AppendingContract,
    ReadingContract,
    LivenessContract,
    ConsumerContract,
):
    """Subclass it with a fixture ``opening``: a function that opens the backend under test.

    Called again after the backend was closed, it opens the same one: where ``durable`` is not
    missing, everything written must be there."""
