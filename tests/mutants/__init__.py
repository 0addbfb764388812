"""Seeded bugs, and a command that shows whether the tests notice them."""
