"""Prompts of benchmarks: built in, and from files."""
