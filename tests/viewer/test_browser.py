"""Pages in a browser: they open from a file without a network, and nothing in the data runs."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from graphcircuits import load_case, localize
from graphcircuits.viewer.heatmap import heat_maps
from graphcircuits.viewer.page import page
from lab.benchmarks import screenshots
from tests.viewer.conftest import Opened
from tests.viewer.reading import circuit_page, result_page
from tests.viewer.test_page import HOSTILE, circuit, heat_map, viewer

Open = Callable[..., Opened]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("make", [viewer, circuit, heat_map])
@pytest.mark.parametrize("text", ["title", HOSTILE])
def test_pages_open_and_ask_for_nothing(
    opened: Open, make: Callable[[str], str], text: str
) -> None:
    found = opened(make(text))
    assert (found.said, found.asked) == ([], [])
    assert found.page.title() == text
    # No tag came from the text.
    assert found.page.locator("img, [onerror], script[src]").count() == 0


def test_a_case_with_its_circuit(opened: Open) -> None:
    case = load_case("ib-13")
    result = localize(case.subject(), case.pairs(8), "eap")
    text = result_page([result], truth=case.circuit, notes=case.variables)
    assert len(text.encode()) < 400_000
    found = opened(text)
    data = found.page.evaluate("JSON.parse(document.getElementById('data').textContent)")
    assert len(data["prompts"]) == 4
    assert (found.said, found.asked) == ([], [])


def test_the_policy_stops_what_is_not_the_pages_own(opened: Open) -> None:
    """The collector sees what is wrong: these pages would otherwise pass."""
    own = circuit_page(load_case("ib-3").circuit, title="own")
    changed = own.replace("</html>", "<script>document.title = 'changed'</script></html>")
    found = opened(changed)
    assert found.page.title() == "own"
    assert any("Content Security Policy" in text for text in found.said)
    found = opened(page("<p style='color: red'>x</p>", title="own", text=""))
    assert any("Content Security Policy" in text for text in found.said)
    found = opened(page("<img src='https://example.org/x.png'>", title="own", text=""))
    assert any("Content Security Policy" in text for text in found.said)


def test_heat_maps_keep_their_style(opened: Open) -> None:
    picture = heat_maps(["a", "b"], {"p": torch.eye(2).tolist()}, title="t")
    found = opened(page(picture, title="t", text=""))
    weight = found.page.locator("text.name").evaluate("one => getComputedStyle(one).fontWeight")
    assert weight == "600"
    assert found.said == []


def test_the_picture_of_the_readme_is_the_page_of_its_first_command_as_it_opens(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[str] = []
    monkeypatch.setattr(screenshots, "run_command", lambda command, folder: ran.append(command))
    shot = next(screenshots.shots(tmp_path, None))
    assert shot == screenshots.Shot("viewer.png", tmp_path / "circuit.html")
    text = (Path(__file__).parents[2] / "README.md").read_text("utf-8")
    [command, *_] = re.findall(r"```sh\n(.*?)\n```", text, re.DOTALL)
    assert command == ran[0]
    [picture, *_] = re.findall(r"^!\[.*\]\((.+)\)", text, re.MULTILINE)
    assert picture == f"docs/figures/{shot.name}"


def test_a_machine_without_a_browser_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screenshots.shutil, "which", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"none of chromium, .* install it with: make brow"):
        screenshots.find_browser()
