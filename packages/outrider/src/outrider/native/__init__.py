"""A forward pass in C: the sources (``src``), how they are built and loaded, and matrices in their layout.

``compile`` and ``library`` need no torch.
"""
