"""The rules of groups: which member may read which shard, and how far the group has come."""
