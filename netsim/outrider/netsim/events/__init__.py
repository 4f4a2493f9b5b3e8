"""Event logs of runs: the schema, a strict reader, a writer that leaves nothing half-written, and replay."""
