"""Remat beside what PyTorch offers today: same model, same batch, same peak, in one process."""
