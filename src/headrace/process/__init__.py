"""What a program has one of: clock, signals, wake-ups, fail points, Java."""
