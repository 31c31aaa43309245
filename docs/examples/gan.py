"""A GAN: two models, two optimizers, and a step of its own.

python run_bench.py --suite docs/examples/gan.py --quick
"""

import torch
from torch.nn.functional import softplus
from torchvision.ops import MLP

from bench.spec import Suite


def batches(split, batch_size, seed):
    draw = torch.Generator().manual_seed(seed)
    both = torch.randn(16, batch_size, 64 + 16, generator=draw)
    return [{"real": each[:, :64], "noise": each[:, 64:]} for each in both]


def step(training, batch):
    generator, critic = training.model["generator"], training.model["critic"]
    with training.autocast():
        fake = generator(batch["noise"])
        of_real, of_fake = softplus(-critic(batch["real"])), softplus(critic(fake.detach()))
        of_critic = (of_real + of_fake).float().mean()
    training.update(of_critic, "critic")  # scales, clips and steps as the precision needs it
    with training.autocast():
        of_generator = softplus(-critic(fake)).float().mean()
    training.update(of_generator, "generator")
    return {"critic": of_critic, "generator": of_generator}


def suite():
    return Suite(
        name="gan",
        title="a small GAN",
        model=lambda: {"generator": MLP(16, [128, 64]), "critic": MLP(64, [128, 1])},
        batches=batches,
        step=step,
        optimizer=lambda model: {
            name: torch.optim.Adam(net.parameters(), 1e-3) for name, net in model.items()
        },
        batch_size=64,
    )
