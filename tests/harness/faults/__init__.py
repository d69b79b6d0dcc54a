"""Things going wrong on purpose: kills, power loss, damaged files, mutated input."""
