"""Consumer groups that the cluster keeps."""
