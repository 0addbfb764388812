"""Trained heads as torch modules, for training and for drafting on torch."""

from outrider_torch.heads.checkpoint import head_weights, load_head, make_head, save_head

__all__ = ["head_weights", "load_head", "make_head", "save_head"]
