"""Draft sources."""
