"""Encoders: one that reads tokens, like BERT, and one that reads images in patches (ViT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class EncoderBlock(nn.Module):
    """Attention through PyTorch's fused kernel, then a perceptron, each normalised first and added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)
        self.perceptron_norm = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence, width] to the same shape."""
        batch, sequence, width = x.shape
        heads = self.project_in(self.attention_norm(x)).view(batch, sequence, 3, self.heads, width // self.heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.dropout(self.project_out(mixed.transpose(1, 2).reshape(batch, sequence, width)))
        return x + self.perceptron(self.perceptron_norm(x))  # type: ignore[no-any-return]  # modules return Any


class TokenEncoder(nn.Module):
    """Predicts every token from all of them; returns the loss."""

    def __init__(self, *, layers: int, width: int, heads: int, sequence: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(sequence, width))
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, 0.1) for _ in range(layers)))
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy; both arguments are [batch, sequence]."""
        x = self.dropout(self.norm(self.tokens(tokens) + self.positions))
        return functional.cross_entropy(self.head(self.blocks(x)).flatten(0, 1), targets.flatten())


class PatchEncoder(nn.Module):
    """A vision transformer that classifies by the mean of its patches."""

    def __init__(self, *, layers: int, width: int, heads: int, side: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros((side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, 0.0) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))  # type: ignore[no-any-return]  # modules return Any
