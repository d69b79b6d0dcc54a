"""Views of streams, groups and runs for people and programs; the doctor."""
