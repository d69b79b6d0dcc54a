"""Run a topology in this process: memberships, and the dispatcher that gives slices to lanes."""
