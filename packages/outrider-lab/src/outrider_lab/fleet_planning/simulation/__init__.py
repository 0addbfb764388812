"""Simulates replicas, their router and their ingress, event by event."""
