"""Small networks, one for each rule that keeps a plan exact."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.client.torch_exact.training import Case

WIDTH = 16


class Mlp(nn.Module):
    """A plain chain with dropout; returns the loss."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.dropout(torch.relu(layer(x)))
        return x.square().mean()


class Normalised(nn.Module):
    """Convolutions with BatchNorm and in-place activations; one BatchNorm is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.shared = nn.BatchNorm2d(6, momentum=0.3)
        self.second = nn.Conv2d(6, 6, 3, padding=1)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = functional.relu_(self.norm(self.first(x)))
        x = functional.relu(self.shared(self.second(x)), inplace=True)
        x = x + self.shared(self.second(x))
        return functional.cross_entropy(self.head(x.mean((2, 3))), labels)


class Tied(nn.Module):
    """One matrix for embedding and output; the loss is computed outside."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, WIDTH)
        self.hidden = nn.Linear(WIDTH, WIDTH)
        self.output = nn.Linear(WIDTH, 20, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(torch.tanh(self.hidden(self.embedding(tokens))))


class Sliced(nn.Module):
    """Views of views, and slices written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        out = torch.zeros_like(hidden)
        left, right = hidden.chunk(2, dim=1)
        out[:, : WIDTH // 2] = left.sin()
        out[:, WIDTH // 2 :].add_(right.t().exp().t())
        out[1] = hidden[0]
        return (out.view(-1, 4, 4).transpose(1, 2) * hidden.view(-1, 4, 4)).sum()


class _Cube(torch.autograd.Function):
    """x ** 3, with one tensor saved and one put on ctx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        ctx.square = x * x
        return x * ctx.square

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * (2 * ctx.square + x * x)


class CustomFunction(nn.Module):
    """Uses an autograd.Function."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return _Cube.apply(self.linear(_Cube.apply(self.linear(x)))).mean()  # type: ignore[no-any-return, no-untyped-call]


class Autocast(nn.Module):
    """Computes in bfloat16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return functional.cross_entropy(self.layers(x), labels)


class Attention(nn.Module):
    """Causal attention through PyTorch's fused op, with and without dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.project(x).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads.unbind(0), dropout_p=self.dropout, is_causal=True)
        return mixed.square().mean()


class Frozen(nn.Module):
    """Half of the parameters take no gradient, and one output requires none."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.trained = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = torch.sigmoid(self.frozen(x))
        out = self.trained(torch.tanh(self.trained(hidden)))
        return {"out": out, "nested": (hidden, [out.detach(), out * 2])}


class Spectral(nn.Module):
    """Spectral normalisation: power iteration on buffers, in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.tanh(self.linear(x)))).sum()


class Counting(nn.Module):
    """Reads a buffer before and after writing it."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        shifted = torch.tanh(self.linear(x) + self.seen.cos())
        self.seen.add_(shifted.detach().mean(0))
        return (shifted * self.seen.sin()).sum()


class MutatedOutput(nn.Module):
    """Returns views of an activation that it changes in place, in part after they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = self.linear(x)
        hidden.view(-1).mul_(1.5)
        product = hidden * hidden
        tail = product[1:]
        product.add_(1)
        return hidden, hidden, tail, product.t(), x[0], hidden.detach()


class MutatedInput(nn.Module):
    """Scales its input in place by random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(torch.rand_like(x))
        return (torch.tanh(self.linear(x)) * x).sum()


class Checkpointed(nn.Module):
    """Brings regions of torch.utils.checkpoint of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = checkpoint(self._layer, x, use_reentrant=False)
        return x.square().mean()

    def _layer(self, x: Tensor) -> Tensor:
        return functional.dropout(torch.tanh(self.linear(x)), 0.2)


class Mixed(nn.Module):
    """A transformer layer, convolution, pooling and three kinds of normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.convolution = nn.Conv1d(8, 8, 3)
        self.tail = nn.Sequential(nn.GroupNorm(2, 8), nn.BatchNorm1d(8), nn.MaxPool1d(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.tail(self.convolution(self.encoder(self.project(x)).transpose(1, 2)))
        return functional.huber_loss(x, torch.zeros_like(x))


class Asserting(nn.Module):
    """Asserts something about the contents of a tensor in mid-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.linear(x))
        torch._check_tensor_all(hidden < 1)
        return self.linear(hidden).square().mean()


def labels(count: int) -> Tensor:
    """Class labels below 4."""
    return torch.randint(4, (count,))


def rows(count: int = 5, *, requires_grad: bool = False) -> Tensor:
    """A batch of vectors."""
    return torch.randn(count, WIDTH, requires_grad=requires_grad)


CASES = [
    Case(name="dropout", model=Mlp, batch=lambda _: (rows(),)),
    Case(name="batch norm", model=Normalised, batch=lambda _: (torch.randn(3, 3, 6, 6), labels(3))),
    Case(
        name="tied weights",
        model=Tied,
        batch=lambda _: (torch.randint(20, (3, 5)),),
        loss=lambda output: functional.cross_entropy(output.flatten(0, 1), torch.arange(15, device=output.device)),
    ),
    Case(name="views and slices", model=Sliced, batch=lambda _: (rows(),)),
    Case(name="autograd.Function", model=CustomFunction, batch=lambda _: (rows(),)),
    Case(name="autocast", model=Autocast, batch=lambda _: (rows(), labels(5))),
    Case(name="attention", model=Attention, batch=lambda _: (torch.randn(2, 6, WIDTH),)),
    Case(name="attention with dropout", model=lambda: Attention(0.3), batch=lambda _: (torch.randn(2, 6, WIDTH),)),
    Case(
        name="frozen, nested outputs",
        model=Frozen,
        batch=lambda _: (rows(),),
        loss=lambda output: output["out"].sum() + output["nested"][1][1].square().mean(),
    ),
    Case(name="input gradients", model=Mlp, batch=lambda _: (rows(requires_grad=True),)),
    Case(name="spectral norm", model=Spectral, batch=lambda _: (rows(),)),
    Case(name="mutated buffer", model=Counting, batch=lambda _: (rows(),)),
    Case(
        name="mutated outputs",
        model=MutatedOutput,
        batch=lambda _: (rows(),),
        loss=lambda output: sum((part.square().mean() for part in output if part.requires_grad), torch.zeros(())),
    ),
    Case(name="mutated input", model=MutatedInput, batch=lambda _: (rows(),)),
    Case(name="regions of its own", model=Checkpointed, batch=lambda _: (rows(),)),
    Case(name="assertion", model=Asserting, batch=lambda _: (rows(),)),
    Case(name="mixed layers", model=Mixed, batch=lambda _: (torch.randn(2, 7, WIDTH),)),
    Case(name="several shapes", model=Mlp, batch=lambda step: (rows(3 + step),)),
]
