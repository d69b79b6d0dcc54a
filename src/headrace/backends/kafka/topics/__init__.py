"""Topics as streams: what they are, where they begin and end, whether they changed."""
