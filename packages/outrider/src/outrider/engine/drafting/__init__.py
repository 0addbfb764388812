"""Who drafts for which request, and what becomes of their proposals before the target scores them."""
