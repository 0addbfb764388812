"""Requests that search with beams: one sequence of the cache that holds a tree."""
