"""Records: as rows, as columns, their schema, their shard, their limits."""
