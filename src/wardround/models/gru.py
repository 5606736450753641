"""A gated recurrent unit (Cho et al., EMNLP 2014, arXiv:1406.1078), as torch's GRU computes it, for signals and visits.

Written as plain steps, because torch's own cannot be differentiated patient by patient. Steps after the last measured
sample leave the state as it is.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wardround.core.settings import Count, Fraction
from wardround.models.model import Dropout, Model, ModelBuilder, Shape, from_module
from wardround.models.signal_network import mean_over, signal_size, with_measured
from wardround.study.facts import ModelFacts, declares


class RecurrentNetwork(nn.Module):
    def __init__(self, channels: int, outputs: int, hidden: int, window: int, p: float) -> None:
        super().__init__()
        self.hidden, self.window = hidden, window
        self.inputs = nn.Linear(2 * channels * window, 3 * hidden)
        self.state = nn.Linear(hidden, 3 * hidden)
        for leaf in (*self.inputs.parameters(), *self.state.parameters()):
            nn.init.uniform_(leaf, -1 / math.sqrt(hidden), 1 / math.sqrt(hidden))  # as torch's GRU begins
        self.thinned = Dropout(p, (2 * hidden,)) if p else nn.Identity()
        self.head = nn.Linear(2 * hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x, inside = with_measured(x)
        rows, channels, samples = x.shape
        short = -samples % self.window
        x, inside = F.pad(x, (0, short)), F.pad(inside, (0, short))
        steps = x.reshape(rows, channels, -1, self.window).transpose(1, 2).flatten(2)
        works = inside[:, :, :: self.window]  # a step works where its first sample is not padding: (rows, 1, steps)
        states = self._states(self.inputs(steps), works.transpose(1, 2))
        joined = torch.cat([states[-1], mean_over(torch.stack(states, dim=-1), works)], dim=1)
        scores: Tensor = self.head(self.thinned(joined))
        return scores

    def _states(self, wanted: Tensor, works: Tensor) -> list[Tensor]:
        """After each step: (rows, hidden). `wanted` is what each step's inputs add to the three gates."""
        state = wanted.new_zeros(wanted.shape[0], self.hidden)
        states = []
        for of_input, working in zip(wanted.unbind(1), works.unbind(1), strict=True):
            of_state = self.state(state)
            (reset_in, update_in, new_in), (reset, update, new) = of_input.chunk(3, -1), of_state.chunk(3, -1)
            update = torch.sigmoid(update_in + update)
            new = torch.tanh(new_in + torch.sigmoid(reset_in + reset) * new)
            after = (1 - update) * new + update * state
            state = working * after + (1 - working) * state
            states.append(state)
        return states


CITATION = "Cho et al. Learning phrase representations using RNN encoder-decoder. EMNLP 2014. arXiv:1406.1078"


@declares(ModelFacts(citation=CITATION))
def gru(hidden: Count = 32, window: Count = 1, dropout: Fraction = 0.0) -> ModelBuilder:
    """`window` is how many samples one step sees: 1 for visits, a tenth or a fifth of a second for an ECG. Scores are
    made from the last state and the mean of all states."""

    def build(shape: Shape) -> Model:
        channels, _ = signal_size("gru", shape)

        def module() -> nn.Module:
            return RecurrentNetwork(channels, shape.outputs, hidden, window, dropout)

        # the rules by layers are for layers that run once
        return replace(from_module(module, shape), row_gradients=None)

    return build
