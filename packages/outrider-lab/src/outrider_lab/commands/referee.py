"""``outrider referee``: whether drafts change the answers of any OpenAI-compatible server; a signed report."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.shared import options as o
from outrider.errors import ConfigError
from outrider.utils.whole_files import check_place, write_text

VERIFY = "verify"


def referee(
    target: Annotated[str, typer.Argument(metavar="URL", help="The server's URL; or verify, before a report.")],
    file: Annotated[Path | None, typer.Argument(metavar="REPORT", help="The report to verify.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="URL of the same model without drafts.", show_default="the server, if it can")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name there.", show_default="the first")] = None,
    prompts: Annotated[str, typer.Option(help="mix, stories, or a file of prompts (see outrider bench).")] = "mix",
    minutes: Annotated[float, typer.Option(min=0.001, help="Time it may take; parts ask less to fit.")] = 4.5,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for notes too, as for near-ties.")] = False,
    report: Annotated[
        list[Path] | None, typer.Option(help="Write the report here (.json, .html); may be repeated.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Sign the report with this ed25519 key (PEM), made if it is not there.")
    ] = None,
    signer: Annotated[str | None, typer.Option(help="With verify: the public key that must have signed.")] = None,
    *,
    as_json: o.AsJson = False,
) -> None:
    """Test whether drafts change a server's answers: exit code 0 if not, 1 if so; 0 with notes unless --strict.

    Greedy and seeded texts, alone and in company, prefixes, biases, streams, tool calls, frequencies of samples and
    speed are compared with a server without drafts, or with requests that turn them off.

    Example: outrider referee http://localhost:8000 --report report.html --key referee.pem
    """
    if target == VERIFY:
        _verify(file, signer, as_json)
        return
    if file is not None or signer is not None:
        raise ConfigError("a report and its signer are for outrider referee verify REPORT")
    check_place(*(report or ()))
    if key is not None and not report:
        raise ConfigError("key signs a report: say where to write it with --report")
    from outrider.utils.working import working
    from outrider_lab.data import workloads
    from outrider_lab.referee import page
    from outrider_lab.referee.about import about
    from outrider_lab.referee.document import make_document
    from outrider_lab.referee.suite import Suite, run_suite

    questions = workloads.load(prompts, count=12)
    with working("referee") as tick:
        found = run_suite(target, baseline, questions, Suite(seconds=60 * minutes), model=model, tick=tick)
    document = make_document(found, [shlex.join(["outrider", *sys.argv[1:]])], about(target, baseline), key)
    for path in report or ():
        html = path.suffix in (".html", ".htm")
        write_text(path, page.render(document) if html else json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    typer.echo(json.dumps(document, ensure_ascii=False) if as_json else "\n".join(found.lines()))
    if not found.complete:
        raise typer.Exit(130)
    if not found.passed or (strict and found.notes):
        raise typer.Exit(1)


def _verify(file: Path | None, signer: str | None, as_json: bool) -> None:
    from outrider_lab.referee.document import changes, read_document

    if file is None:
        raise ConfigError("name the report: outrider referee verify REPORT")
    document, page = read_document(file)
    found = changes(document, page, signer)
    signature: dict[str, Any] = document.get("signature") or {}
    if as_json:
        typer.echo(json.dumps({"unchanged": not found, "changes": found, "signer": signature.get("public_key")}))
    else:
        good = f"unchanged since {document['date']}, signed by {signature.get('public_key')}"
        typer.echo("\n".join(found) if found else good)
    if found:
        raise typer.Exit(1)
