"""What every benchmark shares: alternating rounds, processes, tables, pictures, the machine."""
