"""Append records to streams and read them."""
