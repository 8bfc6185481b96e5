"""Where to run: roles as processes. Starts, watches and ends them; knows no strategy."""
