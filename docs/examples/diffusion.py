"""A small diffusion model: it predicts the noise in an image (DDPM, Ho et al., 2020).

python run_bench.py --suite docs/examples/diffusion.py --quick
"""

import torch
from torch import nn

from bench.spec import Suite


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(4, 64, 3, padding=1),  # three colours, and how much of them is noise
            nn.SiLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(64, 3, 3, padding=1),
        )

    def forward(self, noisy, share):
        return self.layers(torch.cat([noisy, share.expand(-1, 1, *noisy.shape[2:])], dim=1))


def batches(split, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(16 if split == "train" else 4):
        images = torch.randn(batch_size, 3, 16, 16, generator=generator)
        noise = torch.randn(batch_size, 3, 16, 16, generator=generator)
        share = torch.rand(batch_size, 1, 1, 1, generator=generator)
        noisy = (1 - share).sqrt() * images + share.sqrt() * noise
        yield {"noisy": noisy, "share": share, "noise": noise}


def loss(model, batch):
    predicted = model(batch["noisy"], batch["share"])
    return (predicted.float() - batch["noise"]).square().mean()


def suite():
    return Suite(
        name="diffusion",
        title="a small denoiser of images of 16 × 16",
        model=Denoiser,
        batches=batches,
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batch_size=16,
    )
