"""The data of a new node: the number of its cluster, and the users it knows from the beginning."""

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
    """With a Java that has the classes. What is asked for is read from a file: passwords are in it,
    and all can see a command line."""
    asked = ["--config", str(properties), "--cluster-id", _new_cluster(), *more]
    arguments = properties.with_name("format.arguments")
    try:
        write_private(arguments, "\n".join(asked).encode())
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
    """A number as Kafka writes it; one that begins with a dash would be taken for an option."""
    return "c" + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode()[1:22]
