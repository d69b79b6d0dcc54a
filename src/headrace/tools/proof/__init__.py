"""The proof: a topology runs on generated load while its replicas are killed and stopped, and its
outputs are compared with those of an undisturbed run."""
