"""Turn values into bytes and back."""
