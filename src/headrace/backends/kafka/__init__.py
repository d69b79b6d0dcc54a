"""Streams on Kafka: topics are streams, partitions are shards."""
