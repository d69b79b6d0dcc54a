"""The command line on a hub of a test's own."""

from __future__ import annotations

import json
from typing import Any

from headrace.tools.kafka_node import Broker
from tests.backends.kafka.hubs import KafkaPlace
from tests.cli.shell import Shell


class Kafka(KafkaPlace):
    """A place, and the command there."""

    def __init__(self, broker: Broker, shell: Shell) -> None:
        super().__init__(broker)
        self.shell = shell

    def __call__(self, *arguments: str, given: bytes = b"") -> tuple[str, str]:
        return self.shell("--hub", self.url, *arguments, given=given)

    def fails(self, *arguments: str, hub: str = "") -> str:
        return self.shell.fails("--hub", hub or self.url, *arguments)

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json")[0])

    def tail(self, *arguments: str) -> list[dict[str, Any]]:
        out, _ = self("tail", *arguments, "--json")
        return [json.loads(line) for line in out.splitlines()]

    def lags(self, group: str) -> list[int]:
        return [row["lag"] for row in self.json("lag", group, "--verbose")]

    def doctor(self, *options: str, code: int = 0, hub: str = "") -> list[dict[str, Any]]:
        out, err = self.shell("--hub", hub or self.url, "doctor", *options, "--json", code=code)
        assert err == ""
        return list(json.loads(out))

    def found(self, *options: str) -> dict[str, dict[str, Any]]:
        return {finding["what"]: finding for finding in self.doctor(*options)}
