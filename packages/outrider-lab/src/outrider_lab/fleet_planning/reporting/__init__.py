"""What came of a simulation: percentiles, how many replicas it takes, pictures."""
