"""The story of a record: through which commits it came, and which commits read it."""
