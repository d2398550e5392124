"""Entry points: solve, frontier, minimum_budget."""
