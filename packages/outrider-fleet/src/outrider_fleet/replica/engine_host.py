"""A replica: one engine that serves the requests of ingresses, over any transport."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from outrider.async_llm import AsyncLLM
from outrider.engine.request import Request, StepOutput
from outrider.errors import ConfigError, EngineDeadError, OutriderError
from outrider.llm import LLM
from outrider.models.inputs import has_encoder
from outrider_fleet.messages.wire import Message, error_message, make_requests, stats_message, step_message
from outrider_fleet.replica.draft_sharing import DraftSharing
from outrider_fleet.tracing import traced
from outrider_server.fingerprint import fingerprint
from outrider_server.http.context import REQUEST_ID
from outrider_server.http.logs import log_generation

logger = logging.getLogger(__name__)

PIECE = 4096  # log-probabilities of a prompt in one message: all of them may be a hundred megabytes


class EngineHost:
    """Runs the requests of messages. Each answer is a dictionary that JSON can hold."""

    def __init__(self, llm: LLM, name: str, *, shares: bool = True) -> None:
        """``shares``: whether texts learned here are told to other replicas.

        Raises ConfigError for a model that cannot be a replica.
        """
        if has_encoder(llm.model):
            raise ConfigError(f"model={llm.config.model!r} has an encoder: it runs without --replicas")
        self.name, self._llm = name, llm
        llm.tokenizer.prepare()
        self._engine = AsyncLLM(llm)
        self._sharing = DraftSharing(llm, self._engine.call, shares=shares)
        self._fingerprint = fingerprint(llm)
        self.sequences = 0  # running or waiting

    @property
    def alive(self) -> bool:
        return self._engine.alive

    def description(self) -> Message:
        """Properties of the model, which an ingress reads once."""
        llm = self._llm
        return {
            "name": self.name,
            "pid": os.getpid(),
            "fingerprint": self._fingerprint,
            "config": {**asdict(llm.config), "extra_sources": list(llm.config.extra_sources)},
            "model": asdict(llm.model.config),
            "precision": llm.model.precision,
            "cache_dtype": str(llm.model.cache_dtype),
            "implementation": llm.model.implementation,
            "device": str(llm.model.device),
            "weights": llm.memory_plan.target_weights,
            "max_seq_len": llm.engine.max_seq_len,
            "vocab_size": llm.engine.vocab_size,
            "eos": list(llm.eos_token_ids),
            "drafters": list(llm.drafters),
            "adapters": llm.adapters.keys,
        }

    def status(self) -> Message:
        """The replica's state, and the responses learned since the last status."""
        llm, stats = self._llm, self._llm.engine.stats
        sources = {
            name: [s.num_drafts, s.num_draft_tokens, s.num_accepted_draft_tokens, list(s.accepted_at.items())]
            for name, s in dict(stats.sources).items()
        }
        busy = llm.engine.busy
        counts = {"steps": stats.steps, "tokens": stats.tokens, "preemptions": stats.preemptions}
        return {
            "alive": self.alive,
            "running": stats.running if busy else 0,
            "waiting": stats.waiting if busy else 0,
            "free_kv_tokens": llm.engine.memory.free_kv_tokens(),
            **counts,
            "busy_s": stats.busy_s,
            "draft_s": stats.draft_s,
            "sources": sources,
            **self._sharing.report(),
        }

    def load(self) -> Message:
        """The load that autoscaling reads."""
        llm = self._llm
        return {"sequences": self.sequences, "places": llm.config.max_batch_size, "tokens": llm.engine.stats.tokens}

    def teach(self, message: Message) -> None:
        """Learn the responses of other replicas."""
        self._sharing.learn(message)

    async def run(self, message: Message) -> AsyncGenerator[Message]:
        """Serve the sequences of one prompt; a message for each step's tokens, and a last one with ``done``.

        Closing the generator ends the sequences.
        """
        REQUEST_ID.set(message["request_id"])
        try:
            requests = await asyncio.to_thread(make_requests, self._llm, message["requests"])
        except Exception as error:  # noqa: BLE001  of this request alone
            yield {"error": _told(error)}
            return
        self.sequences += len(requests)
        told: set[int] = set()  # sequences whose first burst has been sent
        try:
            with traced("outrider.replica", message.get("trace"), {"outrider.replica": self.name}) as span:
                async with aclosing(self._engine.bursts(requests)) as bursts:
                    async for index, steps in bursts:
                        span.step(len(steps))
                        if index not in told:
                            async for rows in _prompt_rows(index, requests[index]):
                                yield rows
                        yield self._burst(index, requests[index], steps, told)
                for request in requests:
                    span.ended(request)
            yield {"done": True, "found": [_found(each) for each in requests]}
        except EngineDeadError:
            return  # the end without ``done`` says so
        except Exception as error:  # noqa: BLE001  as when a step has failed: the engine goes on
            yield {"error": _told(error)}
        finally:
            self.sequences -= len(requests)
            log_generation(message["name"], requests)

    def _burst(self, index: int, request: Request, steps: list[StepOutput], told: set[int]) -> Message:
        """The message of one step. The engine may be steps ahead, so only ``steps`` is reported."""
        burst: Message = {"i": index, "steps": [step_message(step) for step in steps]}
        if index not in told:
            told.add(index)
            burst["cached"] = request.stats.cached_prompt_tokens
        if steps[-1].finish_reason is not None:
            burst["end"] = stats_message(request.stats)
            if request.prompt_report.hidden_sum is not None:
                burst["hidden"] = request.prompt_report.hidden_sum.tolist()
        return burst

    def close(self) -> None:
        self._engine.close()
        self._llm.close()


def _found(request: Request) -> list[Any]:
    """How a search ranks an output, and why it ended."""
    ranked = request.ranked
    return [ranked and ranked.score, ranked and ranked.sum_logprobs, request.finish_reason]


def _told(error: Exception) -> Message:
    if not isinstance(error, OutriderError):
        logger.error("a request failed", exc_info=error)
    return error_message(error)


async def _prompt_rows(index: int, request: Request) -> AsyncGenerator[Message]:
    """The log-probabilities of a prompt, if they are wanted, in pieces between which others go on."""
    if request.params.prompt_logprobs is None:
        return
    each = max(1, PIECE // (request.params.prompt_logprobs + 1))
    for row in range(0, len(request.prompt_report.logprobs), each):
        found = request.prompt_report.logprobs[row : row + each]
        yield {"i": index, "steps": [], "row": row, "prompt_logprobs": [list(own.items()) for own in found]}
        await asyncio.sleep(0)
