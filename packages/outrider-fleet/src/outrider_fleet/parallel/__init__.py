"""One model run by several processes, each of which computes some outputs of every matrix."""
