"""What is said of a trained draft."""
