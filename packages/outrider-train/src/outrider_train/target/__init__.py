"""The target as training reads it: a copy in torch, and its features."""
