"""A forward pass in C: the sources (``src``), their compilation and loading, and matrices in their layout.

``compile`` and ``library`` need no torch.
"""
