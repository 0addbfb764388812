"""Training of draft models and heads."""
