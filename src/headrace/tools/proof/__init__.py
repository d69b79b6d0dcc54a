"""The proof: a topology runs on made-up load while its replicas are killed and stopped, and what
came out is compared with what should have."""
