"""The same model in PyTorch, which is asked for only where it is compared.

Input: parameters as NumPy has them. Output: a decoder with a cache of its own. Invariant: the
operations of `model.step`, as PyTorch has them (`scaled_dot_product_attention`, a matrix product
each); no gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from stagejit.bench.generation.model import Config, Parameters
from stagejit.bench.programs import CommandError


def load_torch() -> Any:
    """The module. Raises CommandError where it is not installed."""
    try:
        import torch
    except ImportError as missing:
        raise CommandError(
            "PyTorch is not installed, and is not compared",
            next_step="pip install torch, or leave it out: --against jax",
        ) from missing
    return torch


class Decoder:
    """compile: the step by `torch.compile`."""

    def __init__(self, config: Config, params: Parameters, *, compile: bool = False) -> None:
        self.torch, self.config = load_torch(), config
        self.params = jax.tree.map(lambda x: self.torch.from_numpy(np.array(x)), params)
        shape = (config.layers, config.heads, config.context, config.width // config.heads)
        self.keys, self.values = self.torch.zeros(shape), self.torch.zeros(shape)
        self.position = 0
        self._step: Callable[..., Any] = self._logits
        if compile:
            self._step = self.torch.compile(self._logits, fullgraph=True)

    def generate(self, count: int, logits: Any, temperature: float) -> tuple[Any, list[int]]:
        """`count` tokens after those that it has seen, the next of which has these logits."""
        torch, tokens = self.torch, []
        with torch.inference_mode():
            for _ in range(count):
                if temperature > 0:
                    chances = torch.softmax(logits / temperature, -1)
                    token = torch.multinomial(chances, 1)[0]
                else:
                    token = logits.argmax()
                tokens.append(int(token))
                logits = self.step(token)
        return logits, tokens

    def step(self, token: Any) -> Any:
        """Logits after one more token, an integer tensor."""
        with self.torch.inference_mode():
            logits = self._step(token, self.torch.tensor(self.position))
        self.position += 1
        return logits

    def _logits(self, token: Any, position: Any) -> Any:
        torch, config = self.torch, self.config
        functional = torch.nn.functional
        place = (position % config.context)[None]
        seen = torch.arange(config.context) <= position
        x = functional.embedding(token[None], self.params["embedding"])[0]
        for number, layer in enumerate(self.params["layers"]):
            mixed = self._normalized(x, layer["attention gain"]) @ layer["queries, keys, values"]
            q, k, v = mixed.view(3, config.heads, 1, -1)
            self.keys[number].index_copy_(1, place, self._turned(k, position))
            self.values[number].index_copy_(1, place, v)
            attended = functional.scaled_dot_product_attention(
                self._turned(q, position)[None],
                self.keys[number][None],
                self.values[number][None],
                attn_mask=seen[None],
            )
            x = x + attended.reshape(-1) @ layer["attended"]
            hidden = self._normalized(x, layer["hidden gain"]) @ layer["up"]
            x = x + functional.gelu(hidden, approximate="tanh") @ layer["down"]
        return self._normalized(x, self.params["gain"]) @ self.params["logits"]

    def _normalized(self, x: Any, gain: Any) -> Any:
        return self.torch.nn.functional.layer_norm(x, x.shape, gain)

    def _turned(self, x: Any, position: Any) -> Any:
        torch, half = self.torch, x.shape[-1] // 2
        angles = position * torch.exp(torch.arange(half) * (-math.log(10_000.0) / half))
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def use_cores(count: int) -> None:
    """As many threads as the other contenders have."""
    load_torch().set_num_threads(count)
