"""From logits to the next token."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def sample(logits: torch.Tensor, temperatures: Sequence[float]) -> list[int]:
    """One token a row of ``logits`` (rows, vocabulary); temperature 0 takes the most likely."""
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    warm = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if warm:
        scale = torch.tensor([temperatures[row] for row in warm], device=logits.device)
        probabilities = torch.softmax(logits[warm].float() / scale[:, None], dim=-1)
        for row, token in zip(warm, torch.multinomial(probabilities, 1)[:, 0].tolist()):  # noqa: B905
            tokens[row] = token
    return tokens
