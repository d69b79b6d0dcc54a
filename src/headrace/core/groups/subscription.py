"""Which streams a group reads: names, and patterns that new streams may match later."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from headrace.core.errors import BadSetting
from headrace.core.names import checked_name

_WILD = frozenset("*?[")
_PATTERN = re.compile(r"([A-Za-z0-9._*?/-]|\[!?[A-Za-z0-9._-]+\])+", re.ASCII)


class Subscription:
    """Names of streams, and patterns such as ``shop/*`` that new streams may match later."""

    def __init__(self, streams: str | Sequence[str]) -> None:
        wanted = [streams] if isinstance(streams, str) else streams
        if not (
            isinstance(wanted, Sequence) and wanted and all(isinstance(w, str) for w in wanted)
        ):
            raise BadSetting(f"streams {streams!r}: a name, a pattern like shop/*, or several")
        self.patterns = [one for one in wanted if not _WILD.isdisjoint(one)]
        for pattern in self.patterns:
            if not _PATTERN.fullmatch(pattern):
                raise BadSetting(
                    f"bad pattern {pattern!r}: letters, digits, '.', '_', '-', one slash, and *, ? "
                    "or [abc] for what may differ"
                )
        self.names = list(dict.fromkeys(checked_name(o) for o in wanted if o not in self.patterns))

    def matches(self, name: str) -> bool:
        """Whether a stream of this name matches one of the patterns."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)
