"""What a user holds: open a hub, run a topology, mirror a stream."""
