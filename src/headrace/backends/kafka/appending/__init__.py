"""Append to partitions, and copy into them in transactions."""
