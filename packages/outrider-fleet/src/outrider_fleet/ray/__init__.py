"""Replicas on Ray Serve: on this machine or a cluster, behind our own server or Serve's. Needs Ray."""
