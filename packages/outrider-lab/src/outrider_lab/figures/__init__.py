"""The figures and tables of the literature, for any model: each a picture and a table of its numbers."""
