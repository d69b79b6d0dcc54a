"""What a hub stands on: memory, an LMDB directory, a Kafka cluster."""
