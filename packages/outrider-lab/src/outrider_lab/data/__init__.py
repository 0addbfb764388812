"""Workloads and texts that come with the package."""
