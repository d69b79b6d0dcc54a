"""The contract of `penstock.core.ports.Backend`, and of a hub on top of it.

What a backend lacks by its published capabilities it must refuse with `Unsupported` and the reason;
no test asks which backend it runs on.
"""

from __future__ import annotations

from penstock.testing.contracts.appending import AppendingContract
from penstock.testing.contracts.commits import CommitContract
from penstock.testing.contracts.consumers import ConsumerContract
from penstock.testing.contracts.copying import CopyingContract
from penstock.testing.contracts.hubs import HubContract
from penstock.testing.contracts.liveness import LivenessContract
from penstock.testing.contracts.reading import ReadingContract
from penstock.testing.contracts.records import RecordsContract
from penstock.testing.contracts.store import StoreContract
from penstock.testing.contracts.streams import StreamsContract
from penstock.testing.contracts.subject import Opening

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
