"""Injected faults: kills, power loss, damaged files, mutated input."""
