"""Heads as others publish them."""
