"""`certify`: a circuit is asked what a sceptical reader would ask, on prompts it has not seen.

1. Fresh prompts judge; those among the prompts it was found on are left out. Without fresh prompts
   half of the pairs are set apart, and the certificate says that they may not be fresh.
2. The questions are answered in order (`NAMES`), the cheap ones first. When the time is over, what
   was not answered is missing, with the reason, and the certificate does not pass.
3. The search that found the circuit is repeated on the other prompts (`searching`); how often an
   edge came back is what the probability of every edge is made of (`probability`).
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from graphcircuits.certificates.certificate import NAMES, Certificate, Line
from graphcircuits.certificates.chance import by_chance
from graphcircuits.certificates.cuts import (
    MOST_EDGES,
    MOST_ON_LARGE,
    complete,
    edge_costs,
    minimal,
    necessary,
)
from graphcircuits.certificates.judging import Clock, Judge, OutOfTime
from graphcircuits.certificates.probability import edge_chances
from graphcircuits.certificates.rivals import Rival, find_rivals, unique
from graphcircuits.certificates.searching import (
    REPETITIONS,
    Find,
    Search,
    Searches,
    asked_of_searches,
    search_again,
    stable,
)
from graphcircuits.certificates.sufficient import sufficient
from graphcircuits.circuit import Circuit
from graphcircuits.evaluation.evaluate import CircuitRuns, subject_first
from graphcircuits.evaluation.proposal import KEEP, LARGE
from graphcircuits.methods.prepare import Progress
from graphcircuits.result.result import Result
from graphcircuits.subject.transformer import Transformer
from graphcircuits.task.fresh import hold_back, prompt_hashes, shared_prompts, unseen
from graphcircuits.task.pairs import Pairs

FEW_FRESH = 32
"""Fresh prompts that judge on a large graph, where hundreds of circuits are run."""
FEWEST = 8
"""Fresh pairs among those given, and others, for these to be told apart."""
SEARCHES_ON_LARGE = 4
"""Fresh searches there."""


def certify(
    subject: Transformer,
    pairs: Pairs,
    circuit: Circuit | Result,
    *,
    fresh: Pairs | None = None,
    search: Result | str | Find | None = None,
    searches: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    sufficient_from: float = 0.8,
    necessary_up_to: float = 0.5,
    minimal_from: float = 0.5,
    stable_from: float = 0.5,
    seen_again_from: float = 0.95,
    chance_up_to: float = 0.05,
    unique_from: float = 0.5,
    complete_up_to: float = 0.6,
) -> Certificate:
    """Ask of a circuit what a sceptical reader would ask, and say how sure one can be.

    Args:
        subject: The transformer that is explained.
        pairs: The prompts that the circuit was found on.
        circuit: The circuit, or a result, whose proposed circuit is taken.
        fresh: Other prompts of the same task, to judge by; without them half of `pairs`.
        search: What is repeated to see whether the circuit is found again: a result, whose method
            and options are taken, a method's name, or a function of subject, pairs and seed that
            returns a result with its circuit. By default the method of the result or, for a circuit
            alone, the one that `localize` chooses.
        searches: How often; 8 times by default, 4 on graphs of 10,000 edges or more.
        seconds: When to stop; what has not been answered by then is missing.
        seed: Draws prompts again, random circuits and parts.
        progress: Called with (questions answered, questions in all).
        sufficient_from: What it has to keep of the subject's output, nineteen times of twenty.
            `localize` aims at .9 on its own prompts; .8 leaves room for others.
        necessary_up_to: What all other edges may keep: at most as much as they lack.
        minimal_from: The share of edges whose removal alone costs something measurable. True
            circuits have edges that nothing needs while others stand: of those of the training
            subjects a quarter in the median.
        stable_from: How much fresh searches have to share with it, over all edges in either: with
            half, two of three edges are in both.
        seen_again_from: The share of its edges that have to come back in one search at least.
        chance_up_to: The share of random circuits that may keep as much.
        unique_from: The share of its edges that an equally good circuit has to have.
        complete_up_to: How much better than the circuit the subject may get along without a part:
            nineteen of twenty circuits found on the training subjects stay below.

    Returns:
        The certificate: `passed`, `lines["sufficient"].value`, `.interval`, `.sentence` and so on,
        `edges` with the probability of each, the stable `core` and the `rivals` that were found.

    Example:
        >>> import graphcircuits as gc
        >>> case = gc.load_case("ib-3")
        >>> subject, pairs = case.subject(), case.pairs(64)
        >>> result = gc.localize(subject, pairs, "eap-ig")
        >>> gc.certify(subject, pairs, result, fresh=case.pairs(64, seed=1000)).passed
        True

    Reference: docs/certificates.md.
    """
    subject_first("certify", subject, "circuit")
    if seconds is not None and not seconds > 0:
        raise ValueError(f"seconds must be above 0, got {seconds}.")
    if searches is not None and (type(searches) is not int or searches < 1):
        raise ValueError(f"searches must be a whole number above 0, got {searches!r}.")
    clock = Clock(seconds, time.perf_counter())
    source = circuit if isinstance(circuit, Result) else None
    chosen = (circuit.circuit() if isinstance(circuit, Result) else circuit).on(subject.graph)
    if not len(chosen):
        raise ValueError("the circuit has no edges; give one with at least one edge.")
    found_on, judged_on, notes = _prompts(pairs, fresh, source)
    large = subject.graph.n_edges >= LARGE
    judged_on = judged_on[:FEW_FRESH] if large else judged_on
    if judged_on.identical:
        raise ValueError(
            "clean and corrupted fresh prompts are identical, so that there is nothing to judge "
            "by; give corrupted prompts that differ from the clean ones."
        )
    judge = Judge(CircuitRuns(subject, judged_on), clock)
    keep = KEEP
    with suppress(OutOfTime):
        keep = asked_of_searches(judge.kept(chosen))
    way = Search.of(source if search is None else search, keep)
    found, rivals = Searches(), list[Rival]()

    def drawn() -> torch.Generator:
        return torch.Generator().manual_seed(seed)

    def ask_minimal() -> Line:
        most = MOST_ON_LARGE if large else MOST_EDGES
        return minimal(chosen, edge_costs(judge, chosen, most, drawn()), minimal_from)

    def ask_stable() -> Line:
        nonlocal found
        times = searches or (SEARCHES_ON_LARGE if large else REPETITIONS)
        part = clock.share(0.6)
        found = search_again(subject, found_on, way, times=times, seed=seed, clock=part)
        if not found.results:
            raise ValueError("; ".join(dict.fromkeys(found.problems)))
        return stable(judge, chosen, found, stable_from, seen_again_from)

    def ask_unique() -> Line:
        start = source or (found.results[0] if found.results else None)
        if start is None:
            raise ValueError("rivals are looked for from the scores of a search, and there is none")
        rivals.extend(find_rivals(subject, found_on, start, judge, chosen, keep, generator=drawn()))
        return unique(chosen, rivals, unique_from)

    questions: dict[str, Callable[[], Line]] = {
        "sufficient": lambda: sufficient(judge, judged_on, chosen, sufficient_from),
        "necessary": lambda: necessary(judge, chosen, necessary_up_to),
        "minimal": ask_minimal,
        "stable": ask_stable,
        "not by chance": lambda: by_chance(judge, chosen, chance_up_to, drawn()),
        "unique": ask_unique,
        "complete": lambda: complete(judge, chosen, complete_up_to, drawn()),
    }
    lines, missing = {}, {}
    for number, name in enumerate(NAMES):
        try:
            clock.check()
            since = clock.spent
            line = questions[name]()
            lines[name] = replace(line, seconds=round(clock.spent - since, 3))
        except OutOfTime:
            missing[name] = f"the {seconds:g} seconds were over"
        except (ValueError, MemoryError) as error:
            missing[name] = str(error)
        if progress is not None:
            progress(number + 1, len(NAMES))
    edges = edge_chances(subject, chosen, found, pairs=found_on) if found.results else None
    return Certificate(
        circuit=chosen,
        lines=lines,
        missing=missing,
        edges=edges,
        core=found.core if found.results else None,
        rivals=tuple(rival.circuit for rival in rivals if rival.equal),
        subject=subject.name or subject.case or (source.subject if source else ""),
        task=pairs.task or (source.task if source else ""),
        search=way.words,
        notes=tuple(notes),
        seed=seed,
        n_pairs=len(found_on),
        n_fresh=len(judged_on),
        seconds=clock.spent,
    )


def _prompts(
    pairs: Pairs, fresh: Pairs | None, source: Result | None
) -> tuple[Pairs, Pairs, list[str]]:
    """Pairs to search on, those to judge by, and what is to be known of them."""
    if fresh is None:
        found_on, judged_on, note = _divided(pairs, source)
        return found_on, judged_on, [note]
    judged_on = unseen(fresh, pairs)
    if judged_on is None:
        raise ValueError(
            f"all {len(fresh)} fresh prompts are among the pairs that the circuit was found on; "
            "give prompts drawn by another seed."
        )
    notes = []
    if left := len(fresh) - len(judged_on):
        notes.append(f"{left} of {len(fresh)} fresh prompts were left out: they were seen before")
    if source is not None and (known := shared_prompts(judged_on, source.prompt_hashes)):
        notes.append(f"{known} fresh prompts were used to find the result, as its file says")
    return pairs, judged_on, notes


def _divided(pairs: Pairs, source: Result | None) -> tuple[Pairs, Pairs, str]:
    """Pairs to search on and to judge by, where no fresh ones were given: as the result says what
    it was found on, or half of them."""
    known = frozenset() if source is None else frozenset(source.prompt_hashes)
    seen = torch.tensor([name in known for name in prompt_hashes(pairs)])
    if min(int(seen.sum()), int((~seen).sum())) >= FEWEST:
        judged_on = pairs[~seen]
        return pairs[seen], judged_on, f"{len(judged_on)} pairs judge that it was not found on"
    try:
        found_on, judged_on = hold_back(pairs, 0.5)
    except ValueError as error:
        raise ValueError(f"a certificate needs fresh prompts, give fresh=: {error}") from error
    note = "no fresh prompts were given: half of the pairs judge, which it may have been found on"
    return found_on, judged_on, note
