"""Makes the data of a new node: the id of its cluster, and the users it knows from the start."""

from __future__ import annotations

import base64
import secrets
import subprocess
from pathlib import Path

from headrace.core.errors import Refused
from headrace.tools.kafka_node.log_tail import tail
from headrace.tools.kafka_node.private_files import write_private

_TOOL = "kafka.tools.StorageTool"
_LIGHT = "-Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def make_data(java: list[str], properties: Path, more: list[str]) -> None:
    """Format the storage. ``java`` is a command with the classes of Kafka. The arguments are in a
    file because they contain passwords, and every user can see a command line."""
    wanted = ["--config", str(properties), "--cluster-id", _new_cluster(), *more]
    arguments = properties.with_name("format.arguments")
    try:
        write_private(arguments, "\n".join(wanted).encode())
        done = subprocess.run(
            [java[0], *_LIGHT.split(), *java[1:], _TOOL, "format", f"@{arguments}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        arguments.unlink(missing_ok=True)
    if done.returncode:
        raise Refused(f"the data of Kafka cannot be made: {tail(done.stdout + done.stderr)}")


def _new_cluster() -> str:
    """An id as Kafka writes it. It begins with a letter: a dash would be taken for an option."""
    return "c" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
