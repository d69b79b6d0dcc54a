"""Real processes on one hub, hurt while they work, and judged by what they told outside it."""
