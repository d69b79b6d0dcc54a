"""A member of a group as a process of its own: it gets commands and answers, line by line.

It has the default settings of `Hub.consumer`. ``sit GROUP`` joins and reads nothing until
``leave``. ``work GROUP NAME FILE`` reads for ever, writes an entry for each handled record, and
ends by SIGTERM as every consumer does.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from io import FileIO

import headrace
from headrace.consumers.consumer import Consumer
from headrace.hub.hub import Hub
from headrace.tools.bench.evidence import ENTRY, stamped_ns

LOOK_S = 0.005


def main(directory: str, stream: str) -> None:
    # Unbuffered: Python cannot end while a thread waits for a line with the lock of a buffer.
    commands = FileIO(0, closefd=False)
    with headrace.open(directory, create=False) as hub:
        hub.stream(stream)
        _say("ready")
        consumer: Consumer | None = None
        while words := commands.readline().decode().split():
            match words:
                case ["sit", group]:
                    consumer = hub.consumer(stream, group=group)
                    _say(str(time.monotonic_ns()))
                case ["leave"]:
                    assert consumer is not None, "the command leave came before sit"
                    consumer.close()
                    _say("left")
                case ["work", group, name, file]:
                    _work(hub, stream, group, name, file, commands)
                    return
                case _:
                    raise AssertionError(f"unknown command {words}")


def _work(hub: Hub, stream: str, group: str, name: str, file: str, commands: FileIO) -> None:
    """Consume. Each entry is written at once: a kill loses at most the entry of one record."""
    evidence = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    began_ns = time.monotonic_ns()
    with hub.consumer(stream, group=group, name=name) as consumer:
        _say(str(began_ns))
        threading.Thread(target=_answer, args=(consumer, commands), daemon=True).start()
        for record in consumer:
            appended_ns = stamped_ns(record.value)
            entry = ENTRY.pack(record.shard, record.offset, appended_ns, time.monotonic_ns())
            os.write(evidence, entry)
    os.close(evidence)


def _answer(consumer: Consumer, commands: FileIO) -> None:
    while words := commands.readline().decode().split():
        match words:
            case ["cpu"]:
                _say(str(time.process_time()))
            case ["holds", *counts]:
                while str(held := len(consumer.granted)) not in counts:
                    time.sleep(LOOK_S)
                _say(f"{held} {time.monotonic_ns()}")
            case _:
                raise AssertionError(f"unknown command {words}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
