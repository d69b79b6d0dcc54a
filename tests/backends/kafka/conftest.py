"""One broker for all tests of this directory: starting it takes ten seconds, and the first time its
jars are fetched."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.backends.kafka.backend import CAPABILITIES
from headrace.tools.kafka_node import Broker
from tests.backends.kafka.commands import Kafka
from tests.backends.kafka.hubs import KafkaPlace
from tests.cli.shell import Shell


@pytest.fixture
def place(broker: Broker) -> Iterator[KafkaPlace]:
    place = KafkaPlace(broker)
    yield place
    place.clear()


@pytest.fixture
def hub(place: KafkaPlace) -> Iterator[headrace.Hub]:
    with headrace.open(place.url) as hub:
        yield hub


@pytest.fixture
def kafka(
    broker: Broker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Kafka]:
    log = logging.getLogger("headrace")
    before = log.level, list(log.handlers), log.propagate
    place = Kafka(broker, Shell(tmp_path, monkeypatch, capsys))
    yield place
    log.level, log.handlers, log.propagate = before
    place.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The contract asks for a refusal where a capability is missing: this says where that was."""
    terminalreporter.section("what the contract does not ask of Kafka")
    for capability, reason in sorted(CAPABILITIES.missing.items()):
        terminalreporter.line(f"{capability:>14}  {reason}")
