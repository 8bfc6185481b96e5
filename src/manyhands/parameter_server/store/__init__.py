"""Parameters in files: segments written once, and what finds the newest record of each chunk."""
