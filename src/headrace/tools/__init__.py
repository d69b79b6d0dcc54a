"""The commands that prove, show and measure: proof, demonstration, benchmarks, a Kafka node."""
