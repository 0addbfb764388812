"""``outrider chat``: a conversation on the terminal, or line by line through a pipe.

command.py    the command and its options            prompt.py     lines from the keyboard or a pipe
session.py    the conversation: ask, answer again    commands.py   /help, /set, /save and the others
answering.py  one answer, stopped by Ctrl-C          files.py      conversations on disk
writing.py    answers as they come                   markdown.py   a line of Markdown, styled
race.py       plain and drafted side by side         settings.py   the settings of /set
completion.py completion by Tab                      quotes.py     messages of several lines
"""

from outrider.cli.chat.command import MAX_TOKENS, OPTIONS, chat, talk

__all__ = ["MAX_TOKENS", "OPTIONS", "chat", "talk"]
