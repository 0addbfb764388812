"""Trained heads: small networks that read a target's features and guess its next tokens."""
