"""Decide where lanes live: in threads, in processes, behind a connection."""
