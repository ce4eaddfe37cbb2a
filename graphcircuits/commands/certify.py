"""`graphcircuits certify`: how sure one can be of the circuit of a result."""

from pathlib import Path
from typing import Annotated

import typer

from graphcircuits.commands import checks, options
from graphcircuits.commands.evaluate import named_case
from graphcircuits.commands.inputs import SubjectWords
from graphcircuits.commands.options import flag
from graphcircuits.commands.output import Json, print_json, print_table, save, say
from graphcircuits.commands.progress import late_progress

FAILS = 3
"""Exit code where a question was answered and failed, or was not answered."""


def certify(
    result: Annotated[
        Path,
        typer.Argument(
            help="File that localize wrote with --out: its circuit is certified.", metavar="RESULT"
        ),
    ],
    case: Annotated[
        str | None,
        typer.Argument(help="The case it is of, such as ib-3; by default the one the file names."),
    ] = None,
    model: options.Model = None,
    task: options.TaskName = None,
    pairs_file: options.PairsFile = None,
    words: options.Words = False,
    pairs: options.Draw = 64,
    seed: Annotated[
        int | None, flag("Draws the prompts to search on; by default that of the result.")
    ] = None,
    method: Annotated[
        str | None, flag("Method that searches again; by default that of the result.")
    ] = None,
    edges: Annotated[
        int | None, flag("Certify so many of the best edges instead of the proposed circuit.")
    ] = None,
    seconds: Annotated[
        float | None, flag("Stop after so long; what was not answered then is missing.")
    ] = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    out: Annotated[Path | None, flag("Write the certificate: .json, .md, .html (a page).")] = None,
    as_json: Json = False,
) -> None:
    """Ask of a circuit what a sceptical reader would ask, on prompts it was not found on.

    Is it sufficient, necessary, minimal; is it found again; would a random one do; is there a
    rival that shares few edges; is it complete? Of a file of prompts those judge that the result
    was not found on, or half of them. Exit code 0 says that all was answered and passed, 3 that
    something failed or is missing.
    """
    from dataclasses import replace

    from graphcircuits.certificates.certificate import SUFFIXES
    from graphcircuits.certificates.certify import certify as certified
    from graphcircuits.result.result import Result

    given = SubjectWords(
        case=case,
        model=model,
        task=task,
        pairs_file=pairs_file,
        words=words,
        n_pairs=pairs,
        seed=seed or 0,
        device=device,
        dtype=dtype,
    )
    checks.refuse(
        checks.when(pairs_file is not None and model is None, "--pairs-file goes with --model"),
        given.problems(),
        checks.when(edges is not None and edges < 1, f"--edges must be at least 1, got {edges}"),
        [] if seconds is None else checks.above("--seconds", seconds, 0),
        checks.suffix("--out", out, *SUFFIXES),
        checks.writable({"--out": out}, read=[result, *given.files]),
    )
    loaded = Result.load(result)
    if case is None and model is None:
        given = replace(given, case=named_case([loaded]))
    if seed is None and loaded.seed is not None:
        given = replace(given, seed=loaded.seed)
    with late_progress() as bar:
        step = bar.add_task("certifying", total=None)
        inputs = given.load(fresh=pairs_file is None)
        circuit = loaded.on(inputs.subject.graph)
        if edges is not None:
            circuit = replace(circuit, chosen=circuit.circuit(edges=edges))
        certificate = certified(
            inputs.subject,
            inputs.pairs,
            circuit,
            fresh=inputs.fresh,
            search=method,
            seconds=seconds,
            seed=given.seed,
            progress=bar.follow(step),
        )
    saved = save({out: certificate.save})
    if as_json:
        print_json(certificate.record())
    else:
        title = ": ".join(text for text in (certificate.subject, certificate.task) if text)
        say(f"{title}, {len(certificate.circuit):,} edges: {certificate.verdict}")
        print_table(["question", "", "value", "asked", "found"], certificate.rows())
        for note in (*inputs.notes, *certificate.notes):
            say(note)
    saved.tell(quiet=as_json)
    if not certificate.passed:
        raise typer.Exit(FAILS)
