"""How a finished request looks in a notebook."""

from __future__ import annotations

from outrider import Output, StepOutput
from outrider.engine.request import Origin
from outrider.engine.stats import RequestStats
from outrider.output import statistics


def output(*tokens: tuple[str, Origin]) -> Output:
    steps = [StepOutput("0", i, text, origin, "suffix", None, None) for i, (text, origin) in enumerate(tokens)]
    stats = RequestStats(completion_tokens=len(tokens), target_runs=2, num_draft_tokens=4, num_accepted_draft_tokens=1)
    text = "".join(text for text, _ in tokens)
    return Output(text, list(range(len(tokens))), "stop", 3, [1], [], stats, steps)


def test_tokens_are_coloured_by_where_they_came_from_and_escaped() -> None:
    html = output(("<b>", "target"), (" & ", "accepted"), ("no", "recovered"), ("", "accepted"))._repr_html_()
    assert '&lt;b&gt;<span title="accepted, suffix" style="background: rgba(46, 160, 67, 0.30)"> &amp; </span>' in html
    assert '<span title="recovered, suffix" style="background: rgba(230, 160, 0, 0.30)">no</span></div>' in html
    assert html.count("title=") == 2  # nothing for a token without text
    assert "2 target runs, 2.00 tokens a run · 25% of 4 draft tokens accepted" in html


def test_representation() -> None:
    assert (
        repr(output(("a\n", "target"))) == "Output('a\\n', 1 tokens, finish_reason='stop', seed=3, 0.50 tokens a run)"
    )
    assert len(repr(output(("x" * 500, "target")))) < 150


def test_a_line_of_statistics_names_the_draft() -> None:
    assert statistics(output(("a", "target")).stats, "lookup, K=8").endswith(
        "lookup, K=8: 25% of 4 draft tokens accepted"
    )
    assert statistics(RequestStats(), "lookup, K=8").endswith(" · lookup, K=8: nothing drafted")
    assert statistics(RequestStats()) == "0 tokens in 0.00 s (0 tokens/s) · 0 target runs, 0.00 tokens a run"
