"""Helpers without a room of their own: JSON files, the user's cache folder, progress bars."""
