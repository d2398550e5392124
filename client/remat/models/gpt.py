"""A GPT: causal self-attention, dropout, and one matrix for both the embedding and the output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class GptShape:
    """Sizes of a GPT. `width` is split evenly over `heads`; `context` is the longest sequence."""

    layers: int = 6
    width: int = 128
    heads: int = 4
    context: int = 256
    vocabulary: int = 512
    dropout: float = 0.1
    attention_dropout: float = 0.0


class Attention(nn.Module):
    """Causal multi-head self-attention, with dropout on its weights (if asked for) and on its result."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.weight_dropout = shape.attention_dropout
        self.project_in = nn.Linear(shape.width, 3 * shape.width)
        self.project_out = nn.Linear(shape.width, shape.width)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same shape."""
        batch, sequence, width = x.shape
        heads = self.project_in(x).view(batch, sequence, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.weight_dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, sequence, width)
        return self.dropout(self.project_out(mixed))  # type: ignore[no-any-return]  # modules return Any


class Block(nn.Module):
    """Attention and a two-layer perceptron, each normalised first and added to its input."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.perceptron_norm = nn.LayerNorm(shape.width)
        self.perceptron = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
            nn.Dropout(shape.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.perceptron(self.perceptron_norm(x))  # type: ignore[no-any-return]  # modules return Any


class Gpt(nn.Module):
    """A decoder-only transformer language model (GPT-2's layout) that computes its own loss."""

    def __init__(self, shape: GptShape) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.position_embedding = nn.Embedding(shape.context, shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.head.weight = self.token_embedding.weight

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of predicting `targets` from `tokens`, both [batch, sequence]."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token_embedding(tokens) + self.position_embedding(positions))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
