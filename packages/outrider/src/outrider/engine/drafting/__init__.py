"""Asks draft sources for proposals, isolates their faults, and merges proposals before the target scores them."""
