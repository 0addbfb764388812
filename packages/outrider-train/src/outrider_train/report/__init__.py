"""Reports on a trained draft."""
