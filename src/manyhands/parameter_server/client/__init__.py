"""The side of a replica or a driver: finds its chunks, pushes each update once, fetches."""
