"""CUDA graphs: forward passes laid out in a few fixed shapes, captured once and replayed."""
