"""Test what you build: contracts for backends, codecs and engines."""
