"""The exchanges of a call in text: its prompts, and the answers under interchange.

The program runs over the window (`cases.calls`); the prompt has the beginning of a text, the name
and a colon in front of it. Answers are tokens of the model, and stand at `=` and behind.
"""

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from graphcircuits.cases.calls import COLON
from graphcircuits.cases.language import CallCase
from graphcircuits.cases.tokens import END
from graphcircuits.fleets.exchange import FIRST_TOKEN, Exchange, exchange


def call_exchange(case: CallCase, n_inputs: int, n_interchanges: int, seed: int) -> Exchange:
    """Prompts of a call with their answers, plainly and with each component interchanged."""
    generator = torch.Generator().manual_seed(seed)
    words = case.sample(n_inputs, generator)
    places = {word: place for place, word in enumerate(map(str, case.tables.vocab))}
    codes = np.array([[places[word] for word in window] for window in words])
    alone = exchange(case.tables, case.layout, codes, n_interchanges, generator)
    ids = case.ids
    first = torch.tensor([ids[END], ids[case.call.name], ids[COLON]]).expand(n_inputs, -1)
    window = torch.tensor([ids[word] for word in places])[alone.tokens[:, 1:] - FIRST_TOKEN]
    classes = torch.tensor([ids[word] for word in case.call.outputs])
    # Positions leave the beginning of the text out, so name and colon come first.
    ahead = (first.shape[1] - 1, 0)
    answers = torch.zeros(case.call.window + ahead[0], dtype=torch.bool)
    answers[-case.call.answers :] = True
    return replace(
        alone,
        tokens=torch.cat([first, window], 1),
        targets=F.pad(classes[alone.targets], ahead),
        swapped=F.pad(classes[alone.swapped], ahead),
        scored=F.pad(alone.scored, ahead) & answers,
        answers=answers,
    )
