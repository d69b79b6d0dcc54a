"""Benchmarks that a user can run: ``headrace bench NAME``.

Each compares with a peer in the same run.
"""
