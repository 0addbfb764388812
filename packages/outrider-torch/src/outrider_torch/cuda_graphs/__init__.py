"""CUDA graphs: forward passes in a few fixed shapes, captured once and replayed."""
