"""Outrider on torch: GPUs, and heads that need it."""
