"""Formats of tensor files, read under canonical tensor names."""
