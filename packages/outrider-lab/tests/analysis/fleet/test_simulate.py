"""Laws that a simulated fleet obeys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from outrider.cache.blocks import DIGEST_BLOCK as BLOCK
from outrider.errors import InvalidRequestError
from outrider_fleet.messages import remote_sequence
from outrider_fleet.settings import POLICIES
from outrider_lab.cost import LatencyCurve
from outrider_lab.fleet_planning.costs.draft_model import SimulatedDraft
from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.reporting.report import summarize
from outrider_lab.fleet_planning.reporting.sizing import Promise, replicas_needed
from outrider_lab.fleet_planning.simulation.replica import OVERLAP, SimulatedReplica
from outrider_lab.fleet_planning.simulation.routing import Routing
from outrider_lab.fleet_planning.simulation.run import Fleet, SimulatedRun
from outrider_lab.fleet_planning.simulation.running import RequestProgress
from outrider_lab.fleet_planning.simulation.simulate import simulate
from outrider_lab.fleet_planning.workload import Lengths, Segment, Traffic, Workload, synthesize
from outrider_lab.theory import expected_tokens

MACHINE = Machine(LatencyCurve({1: 0.01, 64: 0.03}), max_batch_size=8, max_batched_tokens=256, kv_tokens=20_000)
TALKS = Traffic(rate=15, duration=5, turns=3, think_s=2, prefix_len=100, num_prefixes=3,
                input_len=Lengths("uniform", 10, 60), output_len=Lengths("uniform", 1, 30))  # fmt: skip
DRAFT = SimulatedDraft("model", (0.7,) * 4, spec_length=3, seconds=LatencyCurve({1: 0.002}))


def one_at_a_time(rate: float, tokens: float, count: int) -> Workload:
    """Prompts of a token, arriving at random, with answers of geometric length."""
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1 / rate, count))
    return Workload(
        arrivals=arrivals,
        prompts=np.ones(count, np.int64),
        outputs=rng.geometric(1 / tokens, count),
        sessions=np.arange(count),
        follows=np.full(count, -1),
        segments=[((i, 1),) for i in range(count)],
        duration=float(arrivals[-1]),
    )


def test_a_replica_of_one_place_is_a_queue_of_one_server() -> None:
    """Each wait follows from the one before it (Lindley), and their mean is that of Pollaczek and Khinchine."""
    machine = Machine(LatencyCurve({1: 0.1}), max_batch_size=1)
    workload = one_at_a_time(rate=0.8, tokens=4, count=1500)
    run = simulate(Fleet(machine=machine), workload)
    service = 0.1 * workload.outputs
    waits = [0.0]
    for gap, before in zip(np.diff(workload.arrivals), service, strict=False):
        waits.append(max(0.0, waits[-1] + before - gap))
    assert np.allclose(run.finished - run.arrived, waits + service)
    rate = len(workload) / workload.duration
    load = rate * service.mean()
    assert np.mean(waits) == pytest.approx(rate * (service**2).mean() / (2 * (1 - load)), rel=0.1)


def conserved(run: SimulatedRun) -> None:
    """Every request is answered once, in order of time, and Little's law holds."""
    assert not np.isnan(run.finished).any()
    assert (run.arrived <= run.first).all()
    assert (run.first <= run.finished).all()
    assert (run.finished[run.workload.outputs == 1] == run.first[run.workload.outputs == 1]).all()
    assert run.waiting == pytest.approx((run.finished - run.arrived).sum())  # L T = sum of W


@pytest.mark.parametrize("routing", POLICIES)
def test_requests_are_conserved_and_runs_repeat_themselves(routing: str) -> None:
    workload = synthesize(TALKS, seed=1)
    fleet = Fleet(machine=replace(MACHINE, draft=DRAFT), replicas=3, routing=routing)
    run, again = (simulate(fleet, workload, seed=7) for _ in range(2))
    conserved(run)
    assert (run.finished == again.finished).all()
    other = simulate(fleet, workload, seed=8)
    assert (run.finished != other.finished).any()


def test_a_turn_waits_for_the_answer_before_it() -> None:
    run = simulate(Fleet(machine=MACHINE), synthesize(replace(TALKS, think_s=0.01), seed=1))
    later = run.workload.follows >= 0
    assert later.any()
    assert (run.arrived[later] >= run.finished[run.workload.follows[later]]).all()


def test_failures_lose_no_request_and_cost_reading_again() -> None:
    workload = synthesize(TALKS, seed=1)
    fleet = Fleet(machine=MACHINE, replicas=3)
    calm, broken = simulate(fleet, workload), simulate(replace(fleet, mtbf=2.0, restart=0.5), workload)
    conserved(broken)
    assert broken.failures > 5
    assert broken.resumed > 0
    assert summarize(broken).prompt_tokens_read > summarize(calm).prompt_tokens_read


def test_what_a_server_takes_beside_steps_is_added_once() -> None:
    """Before and behind the steps of a request on its own; its session waits for the end of the answer."""
    workload = replace(one_at_a_time(1, 1, 2), outputs=np.full(2, 5), arrivals=np.zeros(2), follows=np.array([-1, 0]))
    machine = replace(MACHINE, target=LatencyCurve({1: 0.1}), request_seconds=0.02, response_seconds=0.03)
    run = simulate(Fleet(machine=machine), workload)
    conserved(run)
    assert run.first.tolist() == pytest.approx([0.15, 0.7])
    assert run.finished.tolist() == pytest.approx([0.55, 1.1])
    assert run.arrived[1] == pytest.approx(0.55)


def test_a_killed_replica_is_away_and_its_requests_go_on_elsewhere() -> None:
    workload = replace(one_at_a_time(1, 1, 4), outputs=np.full(4, 100), arrivals=np.zeros(4))
    fleet = Fleet(machine=MACHINE, replicas=2, routing="round_robin", kills=[(0.5, 0)], restart=0.4)
    run = simulate(fleet, workload)
    conserved(run)
    assert (run.failures, run.resumed) == (1, 2)
    alone = simulate(replace(fleet, kills=()), workload)
    assert run.end > alone.end
    assert run.counts[1].sequences == 4 * 100 - run.counts[0].sequences + 2 * OVERLAP


def test_a_simulated_router_hears_what_a_real_one_hears() -> None:
    """Blocks that prompts share have one name, whichever segments they lie in, and a cache reports those it holds."""
    workload = synthesize(replace(TALKS, turns=2), seed=3)
    routing = Routing("prefix", workload, seed=0)
    replica = SimulatedReplica(0, MACHINE, RequestProgress.of(workload), np.random.default_rng(0))
    jobs = [routing._job(i) for i in range(len(workload))]
    for i, mine in enumerate(jobs):
        assert len(mine.blocks) == workload.prompts[i] // BLOCK
        for j, other in enumerate(jobs[:i]):
            same = shared_tokens(workload.segments[i], workload.segments[j]) // BLOCK
            assert mine.blocks[:same] == other.blocks[:same]
            assert not set(mine.blocks[same:]) & set(other.blocks[same:])
    replica.add(0)
    now = 0.0
    while replica.load:
        replica.begin(now)
        replica.end(now)
        now += 1
    assert set(jobs[0].blocks) <= set(routing._held(replica))
    assert routing.choose(0, [replica]) is replica


def shared_tokens(one: Sequence[Segment], other: Sequence[Segment]) -> int:
    """Tokens at the beginning that two prompts share."""
    found = 0
    for (name, tokens), (others_name, others_tokens) in zip(one, other, strict=False):
        if name != others_name:
            break
        found += min(tokens, others_tokens)
    return found


def test_requests_say_again_what_a_remote_sequence_compares() -> None:
    assert OVERLAP == remote_sequence.OVERLAP


def test_affinity_never_reads_more() -> None:
    workload = synthesize(TALKS, seed=2)
    machine = replace(MACHINE, kv_tokens=1 << 20)
    read = {name: reading(Fleet(machine=machine, replicas=4, routing=name), workload) for name in POLICIES}
    assert read["prefix"] < read["random"]
    assert read["session"] < read["random"]
    assert reading(Fleet(machine=machine), workload) <= min(read.values())  # one cache holds everything
    nothing = reading(Fleet(machine=replace(machine, prefix_reuse=False), replicas=4), workload)
    assert nothing == pytest.approx(workload.prompts.sum(), rel=1e-3)


def reading(fleet: Fleet, workload: Workload) -> int:
    return summarize(simulate(fleet, workload)).prompt_tokens_read


def test_accepted_tokens_follow_the_theory() -> None:
    workload = replace(one_at_a_time(1, 1, 4), outputs=np.full(4, 2000), arrivals=np.zeros(4))
    run = simulate(Fleet(machine=replace(MACHINE, draft=DRAFT)), workload)
    steps = run.counts[0].sequences
    assert 8000 / steps == pytest.approx(float(expected_tokens(0.7, 3)), rel=0.03)


def test_cores_are_shared() -> None:
    """Two replicas on one core take twice as long; on two cores each is on its own."""
    alone = replace(one_at_a_time(1, 1, 2), outputs=np.full(2, 50), arrivals=np.zeros(2))
    fleet = Fleet(machine=replace(MACHINE, max_batch_size=1), replicas=2, routing="round_robin")
    own, two, one = (simulate(replace(fleet, cores=cores), alone).end for cores in (None, 2, 1))
    assert own == pytest.approx(0.5)
    assert two == pytest.approx(own)
    assert one == pytest.approx(2 * own)


def test_draft_machines_take_drafting_off_the_replicas() -> None:
    workload = replace(one_at_a_time(1, 1, 8), outputs=np.full(8, 300), arrivals=np.zeros(8))
    slow = replace(DRAFT, seconds=LatencyCurve({1: 0.01}))
    fleet = Fleet(machine=replace(MACHINE, draft=slow))
    here = simulate(fleet, workload)
    near = simulate(replace(fleet, draft_machines=2), workload)
    far = simulate(replace(fleet, draft_machines=2, network_delay=0.2), workload)
    conserved(near)
    assert near.counts[0].busy < here.counts[0].busy
    assert far.end > here.end > near.end
    assert near.draft_busy > 0


def test_prompts_are_read_by_replicas_of_their_own() -> None:
    workload = synthesize(TALKS, seed=1)
    fleet = Fleet(machine=replace(MACHINE, kv_bytes_per_token=1e6), replicas=2, prefill_replicas=1)
    run = simulate(fleet, workload)
    conserved(run)
    assert sum(counts.read for counts in run.counts[:2]) == 0
    slow = simulate(replace(fleet, transfer_bandwidth=1e8), workload)
    assert np.median(slow.finished - slow.first) > np.median(run.finished - run.first) + 0.5


def test_the_number_of_replicas_is_the_smallest_that_keeps_the_promise() -> None:
    workload = synthesize(replace(TALKS, rate=50, duration=2), seed=1)
    fleet, promise = Fleet(machine=MACHINE), Promise(latency=0.8)
    found = replicas_needed(fleet, workload, promise)
    assert found.replicas > 1
    assert promise.kept(found.tried[found.replicas])
    assert not promise.kept(summarize(simulate(replace(fleet, replicas=found.replicas - 1), workload)))
    with pytest.raises(InvalidRequestError, match="no number of replicas"):
        replicas_needed(fleet, workload, Promise(latency=0.005))


def test_a_request_that_no_cache_holds_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="kv_tokens=32"):
        simulate(Fleet(machine=replace(MACHINE, kv_tokens=32)), synthesize(TALKS))
