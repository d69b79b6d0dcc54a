"""Benchmarks for users: ``headrace bench NAME``. Each compares Headrace with a peer in the same
run."""
