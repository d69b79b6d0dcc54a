"""The contract of a backend, which is a `Log` and a `GroupStore`, and of a hub on top of it.

A backend publishes the capabilities that it lacks. It must refuse the calls that need them with
`Unsupported` and the reason. No test asks which backend it runs on.
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

    Called again after the backend was closed, the function opens the same backend. If ``durable``
    is not missing, everything that was written must be there."""
