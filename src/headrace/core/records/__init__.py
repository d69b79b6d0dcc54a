"""The rules of records: as rows and as columns, their schema, their shard, their limits."""
