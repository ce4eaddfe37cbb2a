"""What notebooks show: escaped, small, without scripts, references and ids, and well-formed."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch

from graphcircuits import Case, Circuit, Pairs, Result, load_case, rasp
from graphcircuits.drawing import notebook
from graphcircuits.drawing.notebook import still_svg
from graphcircuits.graph import ComponentGraph
from graphcircuits.rasp.compile import compile_program
from graphcircuits.result.curve import FaithfulnessCurve

HOSTILE = "\"'><script src=//evil.example/x.js></script><img src=x onerror=alert(1)>&amp;"
GRAPH = ComponentGraph(2, 2)
SVG = "{http://www.w3.org/2000/svg}"


class Tags(HTMLParser):
    """Tags, attributes and text; raises where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def checked(html: str) -> Tags:
    """The tags of an output that keeps the rules."""
    found = Tags(html)
    assert set(found.tags) <= {
        *("div", "p", "b", "u", "span", "table", "thead", "tbody", "tr", "th", "td"),
        *("svg", "g", "path", "polygon", "rect", "text", "tspan", "title"),
    }
    assert not {name for name in found.names if name.startswith("on")}
    assert not found.names & {"id", "class", "src", "href"}
    assert (
        re.search(r"url\(|@import|https?:(?!//www\.w3\.org/2000/svg)", html.split(HOSTILE)[0])
        is None
    )
    assert len(html.encode()) < 60_000
    return found


def result(graph: ComponentGraph, **more: object) -> Result:
    luck = torch.Generator().manual_seed(0)
    return Result(graph=graph, scores=torch.rand(graph.n_edges, generator=luck), **more)  # pyright: ignore[reportArgumentType]


def picture(html: str) -> ElementTree.Element:
    return ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])


def test_a_circuit() -> None:
    circuit = Circuit.from_names(GRAPH, ["input->a0.h1<q>", "a0.h1->m1", "m1->logits"])
    html = circuit._repr_html_()
    text = " ".join(checked(html).text)
    assert "3 of 46" in text.replace("  ", " ")
    hints = [group.findtext(f"{SVG}title") for group in picture(html).iter(f"{SVG}g")]
    assert [hint for hint in hints if hint] == list(circuit)
    assert "query" in text
    assert "key" not in text
    assert "no edges" in Circuit.from_names(GRAPH, [])._repr_html_()


def test_a_result_with_hostile_words() -> None:
    likely = torch.full((GRAPH.n_edges,), 0.25)
    hostile = result(
        GRAPH, subject=HOSTILE, task=HOSTILE, method=HOSTILE, notes=[HOSTILE] * 9,
        probabilities=likely, seed=3,
    )  # fmt: skip
    html = hostile._repr_html_()
    found = checked(html.replace("//evil.example", ""))
    assert found.text.count(HOSTILE.replace("//evil.example", "")) == 6
    assert "25%" in found.text
    best = hostile.top(20)
    assert [text for text in found.text if "->" in text][:10] == [name for name, _ in best[:10]]
    assert "the best 20 of 46 edges" in found.text
    assert "and 36 more" in found.text
    hints = [x.findtext(f"{SVG}title") for x in picture(html).iter(f"{SVG}g")]
    assert {hint for hint in hints if hint} == {f"{name} {score:.4g}" for name, score in best}


def test_a_result_with_a_chosen_circuit_shows_its_best_edges() -> None:
    chosen = result(GRAPH).circuit(edges=30) - result(GRAPH).circuit(edges=2)
    html = result(GRAPH, chosen=chosen)._repr_html_()
    text = checked(html).text
    assert [word for word in text if "->" in word][:10] == [
        name for name, _ in result(GRAPH).top(12)[2:]
    ]
    assert "28 edges" in text
    assert "the best 20 of 28 edges" in text


@pytest.mark.parametrize(
    "graph", [ComponentGraph(24, 16), ComponentGraph(12, 64, n_kv_heads=2, parallel=True)]
)
def test_large_graphs_stay_small(graph: ComponentGraph) -> None:
    long = "&" * 100_000
    html = result(graph, subject=long, task=long, notes=[long] * 50)._repr_html_()
    checked(html)
    every = Circuit.from_mask(graph, torch.ones(graph.n_edges, dtype=torch.bool))
    words = checked(every._repr_html_()).text[-1]
    shown = re.fullmatch(r"the first (\d+) of ([\d,]+) edges", words)
    assert shown
    assert shown[2] == f"{graph.n_edges:,}"


def test_a_picture_over_its_budget_has_fewer_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    luck = torch.randperm(GRAPH.n_edges, generator=torch.Generator().manual_seed(1)).tolist()
    whole, count = still_svg(GRAPH, luck)
    assert count == len(luck)
    monkeypatch.setattr(notebook, "BUDGET", len(whole) // 3)
    svg, count = still_svg(GRAPH, luck)
    assert count == len(luck) // 4
    assert svg == still_svg(GRAPH, luck[:count])[0]


def test_pairs() -> None:
    clean = torch.tensor([[1, 2, 3], [4, 5, 6]]).repeat(4, 1)
    corrupted = clean.clone()
    corrupted[:, 1] = 9
    scored = torch.tensor([[False, False, True]]).expand(8, 3)
    pairs = Pairs(
        clean=clean, corrupted=corrupted, scored=scored, loss_name="cross-entropy",
        targets=torch.arange(8) + 70, case=HOSTILE,
    )  # fmt: skip
    html = pairs._repr_html_()
    checked(html.replace("//evil.example", ""))
    assert ">1 <b>2</b> <u>3</u></td>" in html
    assert ">4 <b>9</b> <u>6</u></td>" in html
    assert [f">{70 + row}</td>" in html for row in range(6)] == [True] * 5 + [False]
    assert "and 3 more; token ids" in html
    wide = Pairs(
        clean=torch.zeros(900, 3000, dtype=torch.int64),
        corrupted=torch.ones(900, 3000, dtype=torch.int64),
        scored=torch.ones(900, 3000, dtype=torch.bool),
        loss_name="kl",
    )
    assert "…" in "".join(checked(wide._repr_html_()).text)


def test_a_case_and_a_compiled_model() -> None:
    case = Case(id="mine", program=rasp.tokens, vocab=(HOSTILE, "b"), max_seq_len=4, task=HOSTILE)
    found = checked(case._repr_html_().replace("//evil.example", ""))
    assert "2 to 4, BOS included" in found.text
    assert "Case ib-3" in "".join(checked(load_case("ib-3")._repr_html_()).text)
    program = rasp.Map(lambda x: x, rasp.tokens).named("<b>copy</b>")
    html = compile_program(program, vocab=["a", "b"], max_seq_len=3)._repr_html_()
    text = " ".join(checked(html).text)
    assert "m0" in text
    assert "copy" in text


def test_a_curve() -> None:
    curve = FaithfulnessCurve(
        n_edges=33,
        n_pairs=4,
        fractions=(0.1, 0.5, 1.0),
        sizes=(3, 16, 33),
        pruned_sizes=(2, 16, 33),
        faithfulness=(0.5, 0.75, 1.0),
    )
    text = checked(curve._repr_html_()).text
    assert {"CPR", "CMD", f"{curve.cpr:.4f}", f"{curve.cmd:.4f}", "0.7500"} <= set(text)
    assert {"edges for 0.9", "33", "log area", f"{curve.log_area:.4f}"} <= set(text)
    assert "faithfulness by output" in text
    one = FaithfulnessCurve(n_edges=33, n_pairs=4, sizes=(33,), faithfulness=(1.0,))
    assert "CPR" not in checked(one._repr_html_()).text
