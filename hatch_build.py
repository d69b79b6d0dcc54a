"""Builds the C half of streams on Kafka with the package, where there is a C compiler."""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/headrace/backends/kafka/client/columns.c")


class ColumnsHook(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Without a compiler the package is whole all the same, and slower on Kafka."""
        source = Path(self.root) / SOURCE
        library, made = source.with_suffix(".so"), source.with_suffix(".so.made")
        try:
            _build(source, made)
            made.replace(library)  # in one step: processes may be using the one before
        except (OSError, ValueError, subprocess.CalledProcessError) as why:
            library.unlink(missing_ok=True)
            self.app.display_warning(f"streams on Kafka will be slower, columns.c: {why}")
            return
        finally:
            made.unlink(missing_ok=True)
        build_data["artifacts"].append(str(SOURCE.with_suffix(".so")))
        build_data["pure_python"] = False
        # It speaks to no interface of Python: any version will do.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def _build(source: Path, library: Path) -> None:
    def given(name: str, usual: str) -> list[str]:
        return shlex.split(os.environ.get(name) or usual)

    subprocess.run(
        [
            *given("CC", "cc"), *given("CFLAGS", "-O2 -Wall -Wextra"), "-std=c11", "-fPIC",
            f"-DSOURCE={zlib.crc32(source.read_bytes())}u", "-shared", "-o", library, source,
            *given("LDFLAGS", ""),
        ],
        check=True,
    )  # fmt: skip
