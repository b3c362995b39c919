"""A plain PyTorch script with one process. It runs unchanged and does not use Dovetail.

dovetail run --gpus 1 -- python examples/plain.py
"""

from __future__ import annotations

import torch
from torch import nn


def main() -> None:
    """Fit a line."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.linspace(-1, 1, 128, device=device).unsqueeze(1)
    target = 3 * inputs + 0.5
    for epoch in range(100):
        loss = nn.functional.mse_loss(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1}: loss {loss.item():.6f}", flush=True)
    print(f"fitted {model.weight.item():.2f} x + {model.bias.item():.2f}", flush=True)


if __name__ == "__main__":
    main()
