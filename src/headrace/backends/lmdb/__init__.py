"""The embedded backend: one LMDB environment per hub directory."""
