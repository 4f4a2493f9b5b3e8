"""Measures drafters as a device runs them against a target's own text. Nothing that serves imports this package."""
