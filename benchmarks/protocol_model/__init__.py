"""A model of the replication protocol of `docs/protocol.md`, small enough to search it all."""
