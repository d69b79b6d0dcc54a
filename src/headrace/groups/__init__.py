"""Share the shards of streams among members: join, watch, commit, look at and move by hand."""
