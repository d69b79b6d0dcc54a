"""Fail point proofs: replicas killed at every named place."""
