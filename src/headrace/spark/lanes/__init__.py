"""Lanes as Spark jobs: started, reached, run inside a Python worker."""
