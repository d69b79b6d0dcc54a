"""A Spark session: its Java, its settings, what must be installed."""
