"""What a run leaves on disk: its directory, configuration, checkpoints and weights."""
