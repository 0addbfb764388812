"""Benchmarks: backends take turns on a workload, and results are paired ratios with confidence intervals."""
