"""The server in front of replicas: which there are, and which of them takes a request."""
