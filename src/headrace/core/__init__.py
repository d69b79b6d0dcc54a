"""The rules of records, groups and computations: values and pure functions."""
