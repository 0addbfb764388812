"""The ``outrider`` command. Commands import what they need when they run, so that ``--help`` is instant."""

from __future__ import annotations

import sys
from typing import Annotated

import click
import typer

from outrider import __version__
from outrider.cli import chat, doctor, generate, models
from outrider.errors import OutriderError

app = typer.Typer(
    name="outrider",
    help="Run open language models several times faster, without changing what they say.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.add_typer(models.app, name="models")
app.command("doctor")(doctor.doctor)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; every expected failure is one line on stderr and an exit code."""
    try:
        code = app(standalone_mode=False)
    except OutriderError as error:
        sys.exit(_complain(str(error), error.exit_code))
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "outrider"
        sys.exit(_complain(f"{error.format_message()} (see {where} --help)", 2))
    except click.ClickException as error:
        sys.exit(_complain(error.format_message(), error.exit_code))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(_complain("interrupted", 130))
    except BrokenPipeError:  # the reader of our output has gone, as in `outrider ... | head`
        sys.stderr.close()
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(message: str, code: int) -> int:
    typer.echo(f"outrider: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
