"""Speculative execution of samplers that are no language models."""
