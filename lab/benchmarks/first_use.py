"""How long it takes from a bare machine to a circuit on the screen, by the README's own commands.

1. The commands are those between the README's lines `BEGIN` and `END`.
2. The committed files are unpacked into an empty folder, and the commands run there, one after the
   other in one shell, with an empty home: no cache, no settings of this user.
3. `--root` names the root of a bare Debian to run them in (`debootstrap --variant=minbase bookworm
   ROOT`), by chroot; without it they run on this machine.
4. The times, and the sizes of the pages at the end, are printed; with `--write` they go into the
   README, below the commands.

python -m lab.benchmarks.first_use [--root ROOT] [--write]
"""

import argparse
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

README = Path("README.md")
BEGIN, END = "<!-- first use: begin -->", "<!-- first use: end -->"
TOLD = "Timed by `python -m lab.benchmarks.first_use"


def commands_of(readme: str) -> list[str]:
    """The lines of the block that newcomers type."""
    inside = readme.partition(BEGIN)[2].partition(END)[0]
    block = re.search(r"^```sh\n(.*?)^```$", inside, re.DOTALL | re.MULTILINE)
    if block is None:
        raise ValueError(f"the README must have a block of commands between {BEGIN} and {END}.")
    return [line for line in block[1].splitlines() if line]


def unpack(into: Path) -> None:
    """The committed files."""
    packed = subprocess.run(["git", "archive", "HEAD"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(into, filter="data")


def timed(commands: list[str], folder: Path, root: Path | None) -> list[float]:
    """Seconds of each command, all in one shell."""
    inside = folder if root is None else Path("/") / folder.relative_to(root)
    script = [f"cd {inside}", f"export HOME={inside}/home"]
    for command in commands:
        script += ["set -e", command, 'echo "done"']
    shell = ["bash", "-c", "\n".join(script)]
    start, seconds = time.perf_counter(), []
    kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "PATH"))}
    with subprocess.Popen(
        shell if root is None else ["chroot", str(root), *shell],
        stdout=subprocess.PIPE,
        text=True,
        env=kept | {"HOME": str(inside / "home"), "LANG": "C.UTF-8"},
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "done\n":
                seconds.append(time.perf_counter() - start)
                start = time.perf_counter()
            else:
                sys.stderr.write(line)
    if process.returncode:
        raise SystemExit(f"this failed: {commands[len(seconds)]}")
    return seconds


def told(commands: list[str], seconds: list[float], pages: list[Path], root: bool) -> str:
    """The sentence for the README."""
    what = "on a bare Debian with two cores" if root else "on this machine"
    if "PIP_FIND_LINKS" in os.environ:
        what += " that has PyTorch's CPU build on disk"
    each = ", ".join(
        f"`{_short(command)}` {taken:.0f} s"
        for command, taken in zip(commands, seconds, strict=True)
    )
    sizes = " and ".join(f"`{page.name}` {page.stat().st_size / 1000:.0f} kB" for page in pages)
    option = " --root ROOT" if root else ""
    return f"{TOLD}{option}` {what}: {sum(seconds):.0f} seconds in all ({each}); {sizes}."


def _short(command: str) -> str:
    words = command.split()
    return " ".join(words[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, help="of a bare system, for chroot")
    parser.add_argument("--write", action="store_true", help="put the times into the README")
    given = parser.parse_args()
    readme = README.read_text("utf-8")
    commands = commands_of(readme)
    with tempfile.TemporaryDirectory(dir=given.root) as folder:
        place = Path(folder)
        place.chmod(0o755)
        unpack(place)
        seconds = timed(commands, place, given.root)
        sentence = told(commands, seconds, sorted(place.glob("*.html")), given.root is not None)
    print(sentence)
    if given.write:
        head, end, rest = readme.partition(END)
        before = rf"\A\n\n(?:{re.escape(TOLD)}.*?\n\n)?"
        rest = re.sub(before, lambda _: f"\n\n{sentence}\n\n", rest, flags=re.DOTALL)
        README.write_text(head + end + rest, "utf-8")


if __name__ == "__main__":
    main()
