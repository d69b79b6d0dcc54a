"""What a member asks for when it joins a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a lane loads the ports, and with them this module, but deals no shards
    from headrace.core.groups.allocators import Allocator


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    group: str
    name: str
    allocator: Allocator
    session_s: float
    heartbeat_s: float
    capacity: float = 1.0
    order: bool = False
    create: bool = True
    """Make the group if there is none."""
