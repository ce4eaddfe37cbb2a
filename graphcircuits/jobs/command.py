"""The command line that files state: the driver's, whoever writes them and wherever that is.

Workers take over the words of the command that started them (`messages.begin_worker`). Words that
say where and how long to compute are left out: they shape nothing, and the files of a laptop and of
a cluster are the same.
"""

import sys
from collections.abc import Sequence

from graphcircuits.io.store import running_command

FLAGS = ("--resume", "--json")
VALUED = ("--minutes", "--processes")
RAY = "--ray"
"""Its value may be left out."""


def is_address(word: str) -> bool:
    """Whether a word after --ray is its value, and not a case."""
    return word == "auto" or (":" in word and not word.startswith("-"))


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """The words with the value of --ray joined to it, an empty one where none was given."""
    kept: list[str] = []
    for word in arguments:
        if kept and kept[-1] == RAY:
            kept[-1] += "="
            if is_address(word):
                kept[-1] += word
                continue
        kept.append(word)
    return [*kept[:-1], f"{RAY}="] if kept and kept[-1] == RAY else kept


def lasting(arguments: Sequence[str]) -> list[str]:
    """Command line words that shape what is made. Only those are recorded: what was cut off and
    resumed, or made elsewhere, must not differ in them."""
    kept = []
    before = ""
    for word in spelled_out(arguments):
        is_value = before in VALUED
        before = "" if is_value else word
        if not is_value and word.partition("=")[0] not in (*FLAGS, *VALUED, RAY):
            kept.append(word)
    return kept


def driver_command() -> str:
    """The command of whoever gave out the jobs."""
    return running_command(lasting(sys.argv[1:]))
