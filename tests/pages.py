"""Running what a page of the docs tells its reader to do, in the order in which it tells it.

Of the blocks between fences,

1. one with a file's name for a title, such as ```` ```toml title="mine.toml" ````, becomes a file;
2. a `python` block is run, and a line `expression  # -> value` must give that value;
3. every command of a `sh` block is run and must succeed, unless the block has a title: that says
   what it needs and a test has not;
4. a `text` block behind a `sh` block has lines that its commands must have printed, but for times.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests.shell import Command
from tests.test_readme import run_block

FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"[\w-]+\.\w+")
OURS = "graphcircuits"


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    title: str
    text: str


@dataclass
class Ran:
    """How much of a page was run."""

    claims: int = 0
    commands: int = 0
    lines: int = 0


def blocks_of(text: str) -> list[Block]:
    return [Block(language, title, body) for language, title, body in FENCE.findall(text)]


def commands_of(block: Block) -> list[list[str]]:
    """The words of each command; a line may go on behind a backslash."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def run_page(page: Path, folder: Path, command: Command) -> Ran:
    """Do what the page says, in `folder`, which is the current one."""
    ran, namespace, printed = Ran(), {}, ""
    for block in blocks_of(page.read_text("utf-8")):
        if FILE.fullmatch(block.title):
            (folder / block.title).write_text(block.text, "utf-8")
        elif block.title:
            continue
        elif block.language == "python":
            ran.claims += run_block(block.text, namespace)
        elif block.language == "sh":
            printed = ""
            for words in commands_of(block):
                assert words[0] == OURS, f"a test cannot run {words}: say in a title what it needs"
                ended = command(*words[1:])
                assert ended.code == 0, (words, ended)
                printed += ended.out + ended.err
                ran.commands += 1
        elif block.language == "text":
            known = {_plain(line) for line in printed.splitlines()}
            missing = [line for line in block.text.splitlines() if _plain(line) not in known]
            assert missing == [], (missing, printed)
            ran.lines += len(block.text.splitlines())
    return ran


def _plain(line: str) -> str:
    """A line without times and without how wide its columns are."""
    return " ".join(re.sub(r"\d+(\.\d+)? s\b", "TIME", line).split())
