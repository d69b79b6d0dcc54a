"""Benchmarks that a user can run: ``penstock bench NAME``.

Each compares with a peer in the same run.
"""
