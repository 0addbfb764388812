"""The figures and tables of the literature, for any model, each as a picture and a table of numbers."""
