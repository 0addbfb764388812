"""Training tasks, one module for each kind of draft."""
