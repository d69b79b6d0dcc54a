"""Live runs: real processes on one hub, hurt while they work, and judged by evidence outside of
it."""
