"""``outrider train answers``: training data for drafts, written by the target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.shared import options as o
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SpeculationParams
from outrider.utils.interrupt import CtrlC
from outrider_train.commands.common import log

_ENGINE = ("max_batch_size", "max_batched_tokens", "kv_tokens", "draft", "heads", *o.LOADING)

Prompts = Annotated[list[Path] | None, typer.Option(help="Prompts or chats to answer, as JSONL.")]
Own = Annotated[int | None, typer.Option(help="Conversations that the target begins.", show_default="as needed")]
Tokens = Annotated[str | None, typer.Option(help="Tokens of answers to write, such as 500k or 10M.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens of an answer, at most.")]
PromptTokens = Annotated[int, typer.Option(help="Tokens of a prompt that the target writes, at most.", hidden=True)]
Greedy = Annotated[float, typer.Option(help="Share of answers that are greedy.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="Of sampled answers.")]
PromptTemperature = Annotated[float, typer.Option(help="Of prompts that the target writes.", hidden=True)]
PromptTopP = Annotated[float, typer.Option(help="Top-p of prompts that the target writes.", hidden=True)]
Turns = Annotated[str, typer.Option(help="Turns of a conversation, such as 3 or 1-3.")]
SystemShare = Annotated[
    float, typer.Option(help="Share of own conversations that begin with a language, code or a task.", hidden=True)
]
Context = Annotated[str | None, typer.Option(help="Tokens of long contexts, such as 2k-8k.")]
ContextShare = Annotated[float, typer.Option(help="Share of own conversations that have one.", hidden=True)]
Documents = Annotated[
    list[Path] | None,
    typer.Option(help="Texts to make long contexts of, not conversations."),
]
Exclude = Annotated[list[Path] | None, typer.Option(help="Questions that no prompt may contain.")]
ShardLines = Annotated[int, typer.Option(help="Lines of a shard.", hidden=True)]


@options_from(SpeculationParams, EngineConfig, only=_ENGINE, draft="none", max_batch_size=64)
def answers(
    model: o.Model = o.DEFAULT_MODEL,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the answers; one that is begun is gone on with.")],
    prompts: Prompts = None,
    own: Own = None,
    tokens: Tokens = None,
    max_tokens: MaxTokens = 512,
    prompt_tokens: PromptTokens = 256,
    greedy: Greedy = 0.5,
    temperature: Temperature = 0.7,
    prompt_temperature: PromptTemperature = 1.0,
    prompt_top_p: PromptTopP = 0.95,
    turns: Turns = "1",
    system_share: SystemShare = 0.3,
    context: Context = None,
    context_share: ContextShare = 0.1,
    documents: Documents = None,
    exclude: Exclude = None,
    seed: Annotated[int, typer.Option(help="It decides every answer.")] = 0,
    shard_lines: ShardLines = 2000,
    given: Given,
    as_json: o.AsJson = False,
) -> None:
    """Let the target write prompts and answer them, as training data for drafts.

    Loops, duplicates and the questions of --exclude are left out, and counted. Repeat a flag for several files.
    Ctrl-C stops it in order; the same command resumes, if wanted with a larger --own or --tokens.

    Example: outrider train answers --tokens 10M --turns 1-3 --out answers, then outrider train eagle --data answers
    """
    from outrider.utils.working import working
    from outrider_train.answers.options import AnswerOptions, Effort, parse_count, parse_range

    options = AnswerOptions(
        prompts=tuple(prompts or ()),
        documents=tuple(documents or ()),
        exclude=tuple(exclude or ()),
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        greedy=greedy,
        temperature=temperature,
        prompt_temperature=prompt_temperature,
        prompt_top_p=prompt_top_p,
        turns=parse_range("turns", turns),
        system_share=system_share,
        context=None if context is None else parse_range("context", context),
        context_share=context_share,
        seed=seed,
    )
    told = "stopping, with a report; Ctrl-C once more ends at once"
    with CtrlC(lambda: log(told)) as key, working("answers") as tell:
        from outrider_train.answers.run import write_answers

        wanted = None if tokens is None else parse_count("tokens", tokens)
        effort = Effort(own, wanted, shard_lines, lambda: key.pressed)
        report = write_answers(model, out, options, effort, engine=o.engine(given), tell=tell)
    typer.echo(json.dumps(report, ensure_ascii=False) if as_json else "\n".join(_lines(out, report)))
    if not report["complete"]:
        raise typer.Exit(130)


def _lines(out: Path, report: dict[str, Any]) -> list[str]:
    from outrider.utils.progress import duration

    goal, left = dict(report["goal"]), report["seconds_left"]
    done, (unit, asked) = goal.pop("done"), next(iter(goal.items()))
    lines = [
        f"{out}: {report['answers']:,} answers of {report['conversations']:,} conversations, "
        f"{report['tokens_out']:,} tokens ({report['mean_answer_tokens']:.0f} each), {report['tokens_in']:,} read",
        f"greedy {report['greedy_share']:.0%}, cut at the longest {report['truncated_share']:.0%}, with code "
        f"{report['code_share']:.0%}; left out {report['dropped_share']:.0%}: {_counts(report['dropped'])}",
        f"kinds: {_counts(report['kinds'])}",
        f"answers by category: {_counts(report['answers_by_category'])}",
        f"languages, at a guess: {_counts(report['languages'])}",
        f"frequent words of prompts: {_counts(report['topics'])}",
        f"{report['generated_tokens']:,} tokens generated in {duration(report['seconds'])}, "
        f"{report['tokens_per_s'] or 0:,.0f} a second",
    ]
    if not report["complete"]:
        rest = "" if left is None else f", about {duration(left)} left"
        lines.append(f"stopped at {done:,} of {asked:,} {unit}{rest}; the same command goes on")
    return lines


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"
