"""How to train: each strategy reads from top to bottom in one file."""
