"""The command: its options, and its loop over input lines."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.shared import options as o
from outrider.cli.shared.config_file import Config
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SamplingParams, SpeculationParams, engine_config
from outrider.errors import OutriderError
from outrider.utils.whole_files import check_place

if TYPE_CHECKING:
    from outrider.cli.chat.files import Message
    from outrider.cli.chat.prompt import Prompt
    from outrider.cli.chat.session import Session

OPTIONS = (
    *("draft", "spec_length", "tree", "tree_nodes", "verifier", "lenience", "posterior_threshold"),
    *("draft_model", "heads", "draft_table", "datastore", "max_seq_len", *o.LOADING),
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
)
MAX_TOKENS = 1024  # Ctrl-C stops a long answer; a truncated one annoys


@options_from(SpeculationParams, EngineConfig, SamplingParams, only=OPTIONS, max_tokens=MAX_TOKENS)
def chat(
    model: o.Model = o.DEFAULT_MODEL,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the last conversation.")] = False,
    load: Annotated[Path | None, typer.Option(help="Go on with a conversation that /save wrote.")] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="Keep neither what is typed nor the conversation.")
    ] = False,
    config: Config = None,
    *,
    given: Given,
    record: o.Record = None,
) -> None:
    """Talk with a model. /help lists the commands.

    Ctrl-C stops an answer; pressed again, it leaves. Without a terminal, each line of the input is answered in turn.
    """
    from outrider.cli.chat import files

    opening = files.read(files.last_path() if resume else load) if resume or load else []
    talk(model, given, opening, system=system, no_history=no_history, record=record)


def talk(
    model: str,
    given: Given,
    opening: Sequence[Message] = (),
    *,
    system: str | None = None,
    no_history: bool = False,
    record: Path | None = None,
) -> None:
    """Load ``model``, and hold a conversation that begins with ``opening``, as ``chat`` documents it."""
    params = SamplingParams(**o.own(SamplingParams, given))
    from outrider.cli.chat import files
    from outrider.cli.chat.prompt import make_prompt

    config = engine_config(model, **o.engine(given))  # wrong options are reported first
    o.require_chat_model(config.model)
    check_place(record)
    llm = o.load(model, **o.engine(given), max_batch_size=1)
    if record is not None:
        llm.record(record, logits=True)
    from outrider.cli.chat.session import Session
    from outrider.cli.shared.first_words import say_first_words

    kept = None if no_history or not sys.stdin.isatty() else files.last_path()
    session = Session(llm, params, kept=kept)
    session.begin(opening, system)
    session.note(f"{session.describe()}. /help lists the commands.")
    say_first_words(llm, model, session.note, keep=not no_history)
    converse(session, make_prompt(session, history=kept is not None))


def converse(session: Session, prompt: Prompt) -> None:
    """Answer each input of ``prompt`` until it ends."""
    from outrider.cli.chat.commands import run_command

    interrupted = False  # whether another Ctrl-C leaves
    while True:
        try:
            text = prompt.read()
            if text.startswith("/"):
                if not run_command(session, text):
                    break
            elif text.strip():
                session.ask(text.strip())
            interrupted = session.stopped
        except OutriderError as error:
            session.complain(str(error))
        except EOFError:
            break
        except KeyboardInterrupt:
            if interrupted or session.stopped:
                break
            session.note("Ctrl-C once more leaves, as Ctrl-D and /bye do.")
            interrupted = True
    session.leave()
