"""Costs of a replica: its steps and drafts, measured, read from a file, or from a roofline."""
