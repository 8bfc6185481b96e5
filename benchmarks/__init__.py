"""Speed and accuracy, measured beside the peers that a user would otherwise run.

Every module in this folder is a benchmark: a docstring whose first line says what it measures, and
`run(options)` that prints its tables and returns its figures. `python -m benchmarks` lists them.
"""
