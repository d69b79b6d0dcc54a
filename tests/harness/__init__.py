"""The harness: simulator, live runs, fault injection and fail point proofs. It does not ship."""
