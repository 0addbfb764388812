"""The table of transformers' architectures: ``python -m tests.bridge_table --write`` tries each and writes the table.

The table is tests/data/architectures.md; docs/families.md names the types that it lacks.

Every causal language model that transformers lists is tried as a small random model, but those ``LEFT_OUT``.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from outrider.errors import ModelFormatError
from outrider.native.processor import set_num_threads
from outrider.weights.families import FAMILIES
from tests.bridge_checks import examine
from tests.family_table import PAGE, fold
from tests.paths import ROOT

TABLE = ROOT / "tests" / "data" / "architectures.md"
HEAD = """# Architectures of transformers

Made by `python -m tests.bridge_table --write`: a small random model of every causal language model that
transformers lists, run through transformers' code.

* *runs*: the [way](../../docs/families.md#through-transformers-code) of calling the model.
* *apart*: the largest difference of a logit from transformers' own forward pass, relative to the largest
  logit.
* *`generate`*: greedy tokens equal those of `generate()`. RoBERTa and its kin number positions otherwise
  there than in their forward pass; the reason of `moshi` is unknown.
* *drafts*: tokens and log-probabilities are equal with n-grams, a draft model and its trees, greedy and
  sampled.
* *accepted*: draft tokens in those runs.
* *alone*: rows have the same bits in any company.
"""
BEGIN, END = "<!-- bridge: made by python -m tests.bridge_table --write -->", "<!-- end of the bridge -->"
LEFT_OUT = (
    *("internlm3", "iquestcoder", "gpt-sw3", "dots3_note"),  # other names of classes that have a row
    *("blt", "git", "phi4_multimodal", "roc_bert"),  # their smallest members are large
)


def rows(names: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Lines of the table, refused types with their reasons, and types that were not tried."""
    lines: list[str] = []
    refused: list[str] = []
    untried: list[str] = []
    for name in names:
        began, before = time.monotonic(), (len(lines), len(refused))
        try:
            found = examine(name)
        except ModelFormatError as error:
            refused.append(f"| `{name}` | {_reason(str(error))} |")
        except Exception as error:  # noqa: BLE001 - no small member could be made
            untried.append(f"{name}: {type(error).__name__} {error}"[:160])
        else:
            yes = {True: "yes", False: "**no**"}
            cells = [f"`{name}`", found.way, f"{found.apart:.0e}", yes[found.like_generate], yes[found.exact]]
            lines.append("| " + " | ".join([*cells, str(found.accepted), yes[found.invariant]]) + " |")
        last = lines if len(lines) > before[0] else refused if len(refused) > before[1] else untried
        print(f"{time.monotonic() - began:5.1f} s  {last[-1]}", flush=True)
    return lines, refused, untried


def _reason(message: str) -> str:
    """Why the last way was refused."""
    found = re.search(r"row by row: (.*?)(?:; row by row.*)?\): use another", message)
    return (found[1] if found else message).replace("|", "/")


def type_names(lines: Sequence[str]) -> list[str]:
    """The types of a table's ``lines``."""
    return [line.split(" | ")[0].strip("| `") for line in lines]


def summary(lines: Sequence[str], refused: Sequence[str]) -> list[str]:
    """The text of docs/families.md: how many types run, and which are refused."""
    run, no = type_names(lines), type_names(refused)
    return fold(
        f"Of the {len(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)} types that transformers {transformers.__version__} lists as "
        f"causal language models, {len(run)} run, in tests with small random models. Refused are "
        f"{_listed(no)}. The table names those that were not tried: parts of models for images or sound, and what is "
        "not easily made small."
    )


def _untried(lines: Sequence[str], refused: Sequence[str]) -> list[str]:
    """Types of transformers' list without a line."""
    tried = {*type_names(lines), *type_names(refused)}
    return [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in tried]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="the table and the text in docs/families.md; else print")
    parser.add_argument("names", nargs="*", help="types; none: all")
    given = parser.parse_args()
    set_num_threads(1)
    every = [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name not in LEFT_OUT]
    lines, refused, untried = rows(given.names or every)
    own = sum(f"`{name}`" in line for line in lines for name in FAMILIES)
    text = [
        *fold(
            f"With transformers {transformers.__version__}, {len(lines)} types run, {own} of which have "
            f"implementations of our own; {len(refused)} are refused. {len(untried)} of its list were not tried: they "
            "are parts of models for images or sound, or need more than a few lines to be made small."
        ),
        "",
        "| `model_type` | runs | apart | `generate` | drafts | accepted | alone |",
        "|---|---|---|---|---|---|---|",
        *lines,
        "",
        "| refused | why |",
        "|---|---|",
        *refused,
        "",
        *fold(f"Not tried: {_listed(_untried(lines, refused))}."),
    ]
    print("\n".join([*text, "", *untried]))
    if given.write:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN)
        TABLE.write_text("\n".join([HEAD, *text, ""]))
        PAGE.write_text(before + "\n".join([BEGIN, "", *summary(lines, refused), "", END]) + rest.split(END)[1])


if __name__ == "__main__":
    main()
