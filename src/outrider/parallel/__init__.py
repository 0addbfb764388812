"""One model run by several processes: each computes some outputs of every matrix (docs/tensor-parallel.md)."""
