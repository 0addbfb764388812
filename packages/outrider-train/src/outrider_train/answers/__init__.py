"""``outrider train answers``: the target writes prompts and answers them, to train drafts on what they will meet."""
