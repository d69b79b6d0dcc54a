"""Commands that prove, show and measure: proof, demo, benchmarks, a Kafka node."""
