"""Linear layers for each processor and dtype, in calls whose number of rows changes no bit of a row."""
