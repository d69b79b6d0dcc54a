"""Run one slice: read the records, call the handler, commit what the handler made."""
