"""Models in the stores of other programs. They are read in place, and nothing there is changed."""
