"""Benchmarks for users: ``headrace bench NAME`` compares Headrace with a peer in the same run."""
