"""Read partitions by assignment, as lists or as columns."""
