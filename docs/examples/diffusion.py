"""A small diffusion model: it predicts the noise in an image (DDPM, Ho et al., 2020).

python run_bench.py --suite docs/examples/diffusion.py --quick
"""

import torch
from torch import nn

from bench.spec import Suite


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [
            nn.Conv2d(4, 64, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.SiLU(),
        ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(64, 3, 3, padding=1))

    def forward(self, noisy, share):
        return self.layers(torch.cat([noisy, share.expand(-1, 1, *noisy.shape[2:])], dim=1))


def batches(split, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(16 if split == "train" else 4):
        images, noise = (torch.randn(batch_size, 3, 16, 16, generator=generator) for _ in range(2))
        share = torch.rand(batch_size, 1, 1, 1, generator=generator)
        yield {
            "noisy": (1 - share).sqrt() * images + share.sqrt() * noise,
            "share": share,
            "noise": noise,
        }


def suite():
    return Suite(
        name="diffusion",
        title="a small denoiser of images of 16 × 16",
        model=Denoiser,
        batches=batches,
        loss=lambda model, batch: (
            (model(batch["noisy"], batch["share"]).float() - batch["noise"]).square().mean()
        ),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batch_size=16,
    )
