"""Attention over the cache, in calls whose shape changes no bit of a row."""
