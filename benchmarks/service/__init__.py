"""The solver service under load and under fire: `python -m benchmarks.service`."""
