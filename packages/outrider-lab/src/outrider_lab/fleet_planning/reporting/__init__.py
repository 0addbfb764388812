"""Results of a simulation: percentiles, number of replicas, pictures."""
