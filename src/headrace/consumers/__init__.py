"""Loop over the records of granted shards."""
