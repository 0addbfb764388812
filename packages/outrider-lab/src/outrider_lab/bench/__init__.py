"""Benchmarks: backends take turns on a workload; the results are paired ratios with their confidence intervals."""
