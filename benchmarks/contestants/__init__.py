"""Who is measured when a net is trained: what a PyTorch user would run, and Manyhands."""
