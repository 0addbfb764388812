"""Trained heads as networks of torch: to train them, and to draft where torch computes."""

from outrider_torch.heads.checkpoint import head_weights, load_head, make_head, save_head

__all__ = ["head_weights", "load_head", "make_head", "save_head"]
