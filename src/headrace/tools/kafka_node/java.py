"""The Java that runs a broker, and Ivy to fetch its jars."""

from __future__ import annotations

from headrace.core.errors import Refused
from headrace.process.java import ADVICE, JAVA_MIN, find_java


def java_path() -> str:
    java = find_java()
    if java.path is None or not java.is_new_enough:
        raise Refused(f"Kafka runs on Java {JAVA_MIN} or newer, found is: {java}; {ADVICE}")
    return java.path
