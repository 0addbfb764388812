"""Replicas, their router and their ingress, event by event."""
