"""Timing workloads fairly: contenders take turns, and what is reported are ratios with their uncertainty."""
