"""Shared parts of commands: options, settings from files, output, and interruption."""
