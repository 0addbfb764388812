"""The facts of ``outrider models check`` for people."""

from __future__ import annotations

from outrider.cli.check import Facts

__all__ = ["check_lines", "picture"]


def check_lines(facts: Facts) -> list[str]:
    """The facts for people, a line each."""
    lines = [("model", facts["name"])]
    if facts["architecture"] is not None:
        lines.append(("is", f"{facts['format']}, {facts['architecture']}, {facts['parameters'] / 1e6:,.0f} M weights"))
        shares = [f"{name} {share:.0%}" for name, share in facts["types"].items() if share >= 0.005]
        lines.append(("types", ", ".join(shares)))
    if facts["runs"] is None:
        return _aligned([*lines, ("runs", f"no: {facts['why']}")])
    lines.append(("runs", _RUNS[facts["runs"]]))
    if "draft" in facts:
        lines.append(("drafts", facts["draft"] + "".join(f"; {kind} with --heads auto" for kind in facts["heads"])))
    if "weight_bytes" in facts:
        lines += _memory_lines(facts)
        lines += _measured_lines(facts) + _forecast_lines(facts["forecast"]) + _speed_lines(facts)
    return _aligned(lines)


_RUNS = {
    "native": "natively",
    "torch": "by torch: there is no native library here",
    "transformers": "through transformers' code",
    "encoder_decoder": "as a model with an encoder",
    "vision_language": "as a model that sees images",
}


def _memory_lines(facts: Facts) -> list[tuple[str, str]]:
    whole, free = facts["bytes_with_whole_context"] / 1e9, facts["free_bytes"] / 1e9
    weights, token = facts["weight_bytes"] / 1e9, facts["cache_bytes_per_token"] / 1e3
    fits = "fits" if whole <= free else f"does not fit: at most {facts['longest_text_that_fits']:,} tokens"
    return [
        ("memory", f"weights {weights:,.2f} GB, {token:,.1f} kB for each token"),
        ("whole context", f"{facts['context']:,} tokens need {whole:,.2f} GB of {free:,.2f} GB that are free; {fits}"),
    ]


def _measured_lines(facts: Facts) -> list[tuple[str, str]]:
    if "tokens_per_s" not in facts:
        return []
    by_rows = facts["measured_ms_by_rows"]
    more = "".join(f", {ms / by_rows['1']:.2f} times as long for {rows} rows" for rows, ms in list(by_rows.items())[1:])
    threads = facts["measured_threads"]
    return [
        ("measured", f"{facts['tokens_per_s']:,.1f} tokens/s without drafts, {threads} threads; a pass takes{more[1:]}")
    ]


def _forecast_lines(forecast: Facts) -> list[tuple[str, str]]:
    short, count = forecast["steps"][0], forecast["factor_from_models"]
    drafted = ", ".join(f"{each['tokens_per_s']:,.1f} ({each['acceptance']:.0%})" for each in forecast["with_drafts"])
    others = "another model" if count == 1 else f"{count} others"
    source = f"as of {others} here" if count else "as usual: no model has been measured here"
    error = f"; measured steps took {forecast['error']:+.0%}" if "error" in forecast else ""
    return [
        (
            "forecast",
            f"{short['tokens_per_s']:,.1f} tokens/s without drafts, if a pass takes {forecast['factor']:.2f} times the "
            f"limit, {source}{error}",
        ),
        ("with drafts", f"{drafted} tokens/s, by the share of draft tokens that are right"),
    ]


_PARTS = {"layers": "reading weights", "attention": "attention", "lm_head": "LM head"}
_WIDTH = 40


def picture(forecast: Facts) -> list[str]:
    """Bars of where the time of a step goes, for each context, with that of drafting a token."""
    lines = []
    for step in forecast["steps"]:
        lines.append(f"a step behind {step['context']:,} tokens takes {step['ms']:,.1f} ms:")
        parts = {_PARTS[name]: ms for name, ms in step["parts_ms"].items()}
        if forecast["draft_token_ms"]:
            parts["a draft token"] = forecast["draft_token_ms"]
        for name, ms in parts.items():
            share = ms / step["ms"]
            bar = "█" * min(_WIDTH, round(_WIDTH * share)) or "▏"
            lines.append(f"  {name:16} {bar:{_WIDTH}} {ms:9,.2f} ms {share:5.0%}")
    return lines


def _speed_lines(facts: Facts) -> list[tuple[str, str]]:
    read, rate = facts["bytes_read_per_token"] / 1e9, facts["read_gb_s"]
    return [
        (
            "speed",
            f"at most {facts['tokens_per_s_at_most']:,.1f} tokens/s without drafts: {read:,.2f} GB are read for each, "
            f"at {rate:,.1f} GB/s with {facts['threads']} threads",
        ),
        ("prompts", f"at most {facts['prompt_tokens_per_s_at_most']:,.0f} tokens/s, by arithmetic"),
    ]


def _aligned(lines: list[tuple[str, str]]) -> list[str]:
    return [f"{name:14} {text}" for name, text in lines]
