"""What a backend can do, and the reasons for what it cannot: asked for at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headrace.core.errors import BadSetting, Unsupported
from headrace.core.nearest import did_you_mean

Capability = Literal[
    "atomic_append",  # all records of one append become visible together, or none does
    "commit",  # outputs, state and checkpoint in one step
    "copying",  # records of another log come with the position there, in one step
    "dense_offsets",  # the record after offset n has offset n + 1
    "durable",  # an acknowledged record survives the process and the power
    "merge",  # two neighbouring shards become one
    "processes",  # several processes may use it at once
    "producer_seq",  # a repeated append is recognised, also after a restart
    "remote",  # other machines can reach it
    "split",  # one shard becomes two
    "store",  # small values written by checked transactions
    "trim",  # records before an offset can be dropped
]
CAPABILITIES: tuple[Capability, ...] = (
    "atomic_append", "commit", "copying", "dense_offsets", "durable", "merge",
    "processes", "producer_seq", "remote", "split", "store", "trim",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The published table: which capabilities are missing, each with the reason."""

    backend: str
    missing: Mapping[Capability, str] = field(default_factory=dict)

    def require(self, *wanted: Capability) -> None:
        """Refuse with `Unsupported` and the reason if one of these is missing."""
        for capability in wanted:
            if capability not in CAPABILITIES:
                raise BadSetting(
                    f"unknown capability {capability!r}: known are {', '.join(CAPABILITIES)}"
                    f"{did_you_mean(capability, CAPABILITIES)}"
                )
            if capability in self.missing:
                raise self.refusal(capability)

    def refusal(self, capability: Capability) -> Unsupported:
        """The error for a caller that needs a missing capability."""
        return Unsupported(self.backend, f"offer {capability!r}", self.missing[capability])

    def with_groups_in(self, other: Capabilities) -> Capabilities:
        """The capabilities of a hub whose records live here and whose groups live elsewhere."""
        missing = {what: why for what, why in self.missing.items() if what not in _OF_GROUPS}
        for what in _OF_GROUPS:
            if what in other.missing:
                missing[what] = other.missing[what]
        for what in _OF_BOTH:
            if what in other.missing:
                missing.setdefault(what, f"groups live elsewhere: {other.missing[what]}")
        missing["commit"] = (
            f"records live in {self.backend} and groups elsewhere, in {other.backend}: no commit "
            "can hold outputs and checkpoint together"
        )
        return Capabilities(f"{self.backend} with groups in {other.backend}", missing)


_OF_GROUPS: tuple[Capability, ...] = ("store",)
_OF_BOTH: tuple[Capability, ...] = ("durable", "processes", "remote")
