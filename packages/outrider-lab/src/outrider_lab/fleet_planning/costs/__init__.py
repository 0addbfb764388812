"""Costs of a replica's steps and drafts: measured, read from a file, or from a roofline."""
