"""The ``outrider`` command: the core's commands, and those of installed distributions.

Commands import their modules when they run, so that ``--help`` is instant.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from outrider import __version__
from outrider.cli import chat, doctor, generate, models
from outrider.cli.shared.extended import Commands
from outrider.cli.shared.help import add, print_without_command
from outrider.errors import OutriderError
from outrider.utils.system import utf8_output

# Recent versions of typer bundle click: its errors are found through the one that typer names.
_UsageError, _ClickError = typer.BadParameter.__mro__[1:3]

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to stdout that is a file: they carry no name."""

app = typer.Typer(
    name="outrider",
    help="Run open language models several times faster, without changing what they say.",
    epilog="Ollama's commands work too: run, ps, pull, list, show and rm.",
    cls=Commands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
add(app, "generate", generate.generate, short_help="Answer one prompt, or continue a text.")
add(app, "chat", chat.chat, short_help="Talk with a model.")
app.add_typer(models.app, name="models", short_help="List, fetch, inspect and remove models.")
add(app, "doctor", doctor.doctor, short_help="Show what this machine offers.")
_OLLAMA: dict[str, Callable[..., None]] = {
    "pull": models.pull_command,
    "list": models.list_command,
    "ls": models.list_command,
    "show": models.info_command,
    "rm": models.rm_command,
}
for name, command in _OLLAMA.items():
    add(app, name, command, hidden=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    print_without_command(context)


def main() -> None:
    """Run the command line; every expected failure is one line on stderr and an exit code."""
    utf8_output(sys.stdout, sys.stderr)
    try:
        code = app(prog_name="outrider", standalone_mode=False)
    except OutriderError as error:
        sys.exit(_complain(str(error), error.exit_code))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(_complain("interrupted", 130))
    except BrokenPipeError:  # the reader of our output ended, as in `outrider ... | head`
        sys.stderr.close()
        sys.exit(141)
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (what is left there cannot be written either)
        sys.exit(_complain(f"cannot write the output: {error.strerror}", 1))
    except Exception as error:
        if not isinstance(error, _ClickError):
            raise
        said = error.format_message().removesuffix(".")  # type: ignore[attr-defined]
        hint = f"{_given(error, said)} (see --help)" if isinstance(error, _UsageError) else ""
        sys.exit(_complain(f"{said}{hint}", error.exit_code))  # type: ignore[attr-defined]
    sys.exit(code if isinstance(code, int) else 0)


def _given(error: Exception, said: str) -> str:
    """The given value of the option of a usage error, if its message ``said`` lacks it."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for at, word in enumerate(sys.argv):
        option, _, value = word.partition("=")
        if option in names:
            given = repr(value or " ".join(sys.argv[at + 1 : at + 2]))
            return "" if given in said else f", not {given}"
    return ""


def _complain(message: str, code: int) -> int:
    typer.echo(f"outrider: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
