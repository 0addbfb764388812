"""``outrider train answers``: the target writes prompts and answers them, as training data for drafts."""
