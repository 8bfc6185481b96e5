"""What a run tells: the event stream, and those who show, plot and store it."""
