"""Requests kept with their tokens, in a file that ``outrider replay`` runs again."""
