"""Networks made of blocks, one for each rule of eager mode."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.client.torch_exact.training import Case

WIDTH = 32
ROWS = 256


class Block(nn.Module):
    """Normalised perceptron with two dropouts, added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(self.norm(x))


class Noisy(nn.Module):
    """Draws random numbers twice, by ops whose results can be saved."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x * torch.rand_like(x))
        return torch.sin(x * torch.rand_like(x))


class ConvolutionBlock(nn.Module):
    """Convolutions with BatchNorm and in-place activations, the last of them outside the inner sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu_(self.body(x).add_(x))


class Counting(nn.Module):
    """Reads a buffer before and after changing it: running it twice would change the result."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.register_buffer("seen", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        shifted = self.mix(x + self.seen.cos())
        self.seen.add_(shifted.detach().mean(0))
        return shifted * self.seen.sin()


class Forgetful(nn.Module):
    """Counts its calls in Python, where nobody sees it, and computes something else each time."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sin(self.mix(x) * self.calls)


class Stubborn(nn.Sequential):
    """The same in one piece: no part of it can run twice."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.sin(super().forward(x) * self.calls)


class Caching(nn.Module):
    """Keeps what it computes in an object of its caller's, as attention does in a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor, cache: set[Tensor]) -> Tensor:
        cache.add(self.mix(x))
        return sum(cache)  # type: ignore[return-value]


class Sly(nn.Module):
    """Computes something else while a backward runs, which no rule can foresee."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        in_backward = torch._C._current_graph_task_id() != -1
        return torch.sin(self.mix(x) * (3 if in_backward else 2))


class Skipping(nn.Module):
    """Blocks of which each is skipped in a share of the steps."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for block in self.blocks:
            if torch.rand(()).item() >= self.share:
                x = block(x)
        return x.square().mean()


class Keeping(nn.Module):
    """Keeps a table from one step to the next that is no buffer of its."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        self.table = x.detach() * 2
        for block in self.blocks:
            x = block(x)
        return (x + self.table).square().mean()


class Accounting(nn.Module):
    """Leaves a part of the loss on itself, with its history, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        self.share = self.mix(x).square().mean()
        return x * (1 + self.share)


class Attending(nn.Module):
    """Attention layers of PyTorch's own, each given one tensor three times: they ask whether keys *are* the queries."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, 4, dropout=0.1, batch_first=True) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x, x, x, need_weights=False)[0]
        return x.square().mean()


class Hooked(nn.Module):
    """Hangs hooks on what its blocks return, and keeps a gradient there: both need results that have a history."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            x.register_hook(lambda gradient: gradient * 1.5)
            x.retain_grad()
        return x.square().mean()


class Differentiating(nn.Module):
    """Takes a gradient with respect to its input in the midst of its forward, as models of forces do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = x
        for block in self.blocks:
            y = y + block(y)
        energy = y.square().mean()
        (forces,) = torch.autograd.grad(energy, x, create_graph=True)
        return energy + forces.square().sum()


class DifferentiatingInside(nn.Module):
    """A block that takes such a gradient by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        y = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.mix(y).sum(), y, create_graph=True)
        return x + slope


class Transforming(nn.Module):
    """A block that PyTorch's checkpoint can't run: a transform of a function inside."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.func.vmap(torch.func.grad(lambda row: self.mix(row).sum()))(x)


class Repeating(nn.Module):
    """A BatchNorm that runs three times in one block, and counts its batches in place."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.mix(self.mix(x)))  # type: ignore[no-any-return]


class Casting(nn.Module):
    """Runs a model in half precision: autocast casts each weight once, and a recompute does so again."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.inner(x)  # type: ignore[no-any-return]


class Chain(nn.Module):
    """Blocks one after the other; returns the loss."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


@dataclass
class Output:
    """What a library's model returns."""

    loss: Tensor
    logits: Tensor
    skipped: int


class Library(nn.Module):
    """A transformer as libraries write them: keyword arguments, checks on the data, an output object.

    Dynamo can't follow it: what it does next depends on numbers that only a run knows.
    """

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, *, tokens: Tensor, labels: Tensor) -> Output:
        if labels.max().item() >= 50:
            raise ValueError("a label outside the vocabulary")
        x = self.embedding(tokens)
        skipped = 0
        for layer in self.encoder.layer:  # type: ignore[union-attr]
            x = layer(x)
            if not torch.isfinite(x).all():
                x = torch.nan_to_num(x)
                skipped += 1
        logits = self.head(x)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return Output(loss=loss, logits=logits, skipped=skipped)


class LibraryLoop(nn.Module):
    """Calls `Library` as a training loop does, so that it can be trained like the others."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Library()

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return self.model(tokens=tokens, labels=labels).loss


def rows() -> Tensor:
    return torch.randn(ROWS, WIDTH)


DROPOUT = Case(name="dropout", model=lambda: Chain(*(Block() for _ in range(5))), batch=lambda _: (rows(),))
CONVOLUTIONS = Case(
    name="batch norm, in place",
    model=lambda: Chain(*(ConvolutionBlock() for _ in range(4))),
    batch=lambda _: (torch.randn(4, 8, 16, 16),),
)
LIBRARY = Case(
    name="a library's model that breaks the graph",
    model=LibraryLoop,
    batch=lambda _: (torch.randint(50, (8, 32)), torch.randint(50, (8, 32))),
)
COUNTING = Case(
    name="a buffer read and changed",
    model=lambda: Chain(Block(), Counting(), Block(), Block()),
    batch=lambda _: (rows(),),
)
NOISY = Case(name="random numbers", model=lambda: Chain(*(Noisy() for _ in range(4))), batch=lambda _: (rows(),))
CASTING = Case(name="autocast inside", model=lambda: Casting(DROPOUT.model()), batch=lambda _: (rows(),))
ATTENDING = Case(name="one tensor three times", model=Attending, batch=lambda _: (torch.randn(4, 64, WIDTH),))
HOOKED = Case(name="hooks on results", model=Hooked, batch=lambda _: (rows(),))
REPEATING = Case(
    name="one batch norm three times", model=lambda: Chain(*(Repeating() for _ in range(4))), batch=lambda _: (rows(),)
)
OBSTINATE = Case(
    name="blocks that can't be recomputed",
    model=lambda: Chain(Block(), Transforming(), DifferentiatingInside(), Block()),
    batch=lambda _: (rows(),),
)
CASES = [NOISY, DROPOUT, CONVOLUTIONS, LIBRARY, COUNTING, CASTING, ATTENDING, HOOKED, REPEATING, OBSTINATE]
