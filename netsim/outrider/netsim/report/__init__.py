"""What event logs and sweeps say: counts, tables, and one figure a file."""
