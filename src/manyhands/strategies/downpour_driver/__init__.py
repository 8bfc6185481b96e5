"""The user's process of a Downpour run: starts, watches and ends everybody else."""
