"""The command line that files state: the driver's, whoever writes them and wherever that is.

Workers take over the words of the command that started them (`messages.begin_worker`). Words that
say where and how long to compute are left out: they shape nothing, and the files of a laptop and of
a cluster are the same.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join

FLAGS = ("--resume", "--json")
VALUED = ("--minutes", "--processes")
PERHAPS_VALUED = ("--ray",)
"""Options whose value may be left out."""


def lasting(arguments: Sequence[str]) -> list[str]:
    """Command line words that shape what is made. Only those are recorded: what was cut off and
    resumed, or made elsewhere, must not differ in them."""
    kept: list[str] = []
    before = ""
    for word in arguments:
        is_value = before in VALUED or (before in PERHAPS_VALUED and not word.startswith("-"))
        before = "" if is_value else word
        if not is_value and word.partition("=")[0] not in (*FLAGS, *VALUED, *PERHAPS_VALUED):
            kept.append(word)
    return kept


def driver_command() -> str:
    """The command of whoever gave out the jobs, without the folder of the program."""
    return join([Path(sys.argv[0]).name, *lasting(sys.argv[1:])])
