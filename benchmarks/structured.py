"""What structured output costs, and what drafts win in it: tokens per run, speed, and the time of a mask.

    python -m benchmarks.structured --model smollm2-135m-instruct --sources none grammar lookup

Twenty schemas of the kinds that people extract, classify and call tools with; plain and drafted runs are interleaved,
and outputs are compared token for token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from typing import Any

from outrider import LLM, Output, SamplingParams, SpeculationParams, StructuredOutput

TEXT, COUNT, NUMBER, FLAG = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
DATE = {"type": "string", "format": "date"}


def record(**fields: Any) -> dict[str, Any]:
    """An object with exactly these fields."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def some(items: Mapping[str, Any], most: int = 4) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": most}


def one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


def short(length: int = 40) -> dict[str, Any]:
    return {"type": "string", "maxLength": length}


TASKS: dict[str, dict[str, Any]] = {
    "Describe a person named Maria Lopez, 34, a nurse in Madrid.": record(
        name=TEXT, age=COUNT, occupation=TEXT, city=TEXT
    ),
    "Classify: 'The battery died after a week.'": record(
        sentiment=one_of("positive", "neutral", "negative"), confidence=NUMBER, topics=some(short(20), 3)
    ),
    "Give the address: 12 Long Lane, Leeds, LS1 4AB, England.": record(
        street=TEXT, city=TEXT, postal_code={"type": "string", "pattern": "^[A-Z]{2}[0-9] [0-9][A-Z]{2}$"}, country=TEXT
    ),
    "What is the weather in Paris today? Call the tool.": record(
        tool=one_of("get_weather", "search"), arguments=record(location=TEXT, unit=one_of("celsius", "fahrenheit"))
    ),
    "Write an invoice for three pens and a notebook.": record(
        invoice_number={"type": "string", "pattern": "^INV-[0-9]{4}$"},
        items=some(record(description=short(), quantity=COUNT, unit_price=NUMBER), 2),
        currency=one_of("EUR", "USD"),
    ),
    "Name three facts about the Moon.": record(subject=TEXT, facts=some(short(60), 3)),
    "Plan a meeting on 3 May 2026 about the budget.": record(
        title=TEXT, date=DATE, attendees=some(short(20), 3), online=FLAG
    ),
    "Review the film 'Metropolis'.": record(
        title=TEXT, year={"type": "integer", "minimum": 1880, "maximum": 2100}, rating={"enum": [1, 2, 3, 4, 5]}
    ),
    "Give a recipe for pancakes.": record(
        name=TEXT, servings=COUNT, ingredients=some(record(ingredient=short(20), amount=short(15)), 3)
    ),
    "Translate 'good morning' to French, German and Spanish.": record(french=TEXT, german=TEXT, spanish=TEXT),
    "Describe a book: Dune by Frank Herbert, 1965.": record(
        title=TEXT, author=record(first_name=TEXT, last_name=TEXT), published=COUNT, genres=some(short(20), 2)
    ),
    "Report a bug: the app crashes when a file is empty.": record(
        title=short(60), severity=one_of("low", "medium", "high", "critical"), reproducible=FLAG, component=short(20)
    ),
    "Describe a server with 16 cores and 64 GB of memory.": record(
        hostname={"type": "string", "pattern": "^[a-z]{2,8}-[0-9]{2}$"}, cores=COUNT, memory_gb=COUNT, region=TEXT
    ),
    "Book a flight from Rome to Oslo for two.": record(
        origin=TEXT, destination=TEXT, passengers=COUNT, travel_class=one_of("economy", "business"), direct=FLAG
    ),
    "List two planets with their radius in kilometres.": some(record(planet=short(15), radius_km=NUMBER), 2),
    "Make a quiz question about rivers with three options.": record(
        question=short(80), options=some(short(30), 3), correct_option={"enum": [0, 1, 2]}
    ),
    "Give RGB values of orange.": record(
        red={"type": "integer", "minimum": 0, "maximum": 255},
        green={"type": "integer", "minimum": 0, "maximum": 255},
        blue={"type": "integer", "minimum": 0, "maximum": 255},
    ),
    "Contact details of a shop.": record(
        email={"type": "string", "format": "email"}, opening_hours=short(20), accepts_cards=FLAG, phone=short(15)
    ),
    "Summarise: 'Rain is forecast for Friday; bring an umbrella.'": record(summary=short(80), action_required=FLAG),
    "A database query for all users older than 30.": record(
        table=one_of("users", "orders"),
        filters=some(record(column=short(15), operator=one_of("<", "=", ">"), value=COUNT), 2),
        limit={"type": ["integer", "null"]},
    ),
}


def mask_times(llm: LLM, form: StructuredOutput, output: Output) -> list[float]:
    """CPU seconds of each mask along an output, by a request of its own that has nothing yet."""
    constraint = llm.grammars.constraint(form)
    times: list[float] = []
    for n in range(len(output.token_ids)):
        began = time.thread_time()
        constraint.mask(output.token_ids[:n])
        times.append(time.thread_time() - began)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--sources", nargs="+", default=["none", "grammar", "lookup"])
    parser.add_argument("--spec-length", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--count", type=int, default=len(TASKS))
    parser.add_argument("--temperature", type=float, default=0.0)
    args = parser.parse_args()
    llm = LLM(args.model, draft="none", max_batch_size=1)
    seconds = dict.fromkeys(args.sources, 0.0)
    tokens, runs, same = (dict.fromkeys(args.sources, 0) for _ in range(3))
    masks: list[float] = []
    compiling: list[float] = []
    for prompt, schema in list(TASKS.items())[: args.count]:
        form = StructuredOutput(json_schema=schema)
        began = time.perf_counter()
        llm.grammars.constraint(form)
        compiling.append(time.perf_counter() - began)
        params = SamplingParams(max_tokens=args.max_tokens, structured=form, temperature=args.temperature, seed=1)
        outputs: dict[str, Output] = {}
        for source in args.sources:
            speculation = SpeculationParams(draft=source, spec_length=args.spec_length)
            began = time.perf_counter()
            output = outputs[source] = llm.chat([{"role": "user", "content": prompt}], params, speculation=speculation)
            seconds[source] += time.perf_counter() - began
            tokens[source] += len(output.token_ids)
            runs[source] += output.stats.target_runs
            same[source] += output.token_ids == outputs[args.sources[0]].token_ids
        masks += mask_times(llm, form, outputs[args.sources[0]])
    first = args.sources[0]
    for source in args.sources:
        speed = tokens[source] / seconds[source]
        print(
            f"{source:8} {speed:6.1f} tokens/s ({speed / tokens[first] * seconds[first]:.2f}x)   "
            f"τ {tokens[source] / runs[source]:.2f}   same tokens {same[source]} of {args.count}"
        )
    cuts = statistics.quantiles(masks, n=100)
    summary = {
        "mask_us": {"median": 1e6 * cuts[49], "p90": 1e6 * cuts[89], "p99": 1e6 * cuts[98], "max": 1e6 * max(masks)},
        "compile_ms": {"first": 1e3 * compiling[0], "median": 1e3 * statistics.median(compiling)},
        "tokens_per_s": {source: tokens[source] / seconds[source] for source in args.sources},
        "tau": {source: tokens[source] / runs[source] for source in args.sources},
    }
    print("mask: " + ", ".join(f"{name} {value:.0f} µs" for name, value in summary["mask_us"].items()))
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
