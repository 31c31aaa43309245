"""A script of accelerate's usual shape, on made-up data, to be measured as it is (docs/scripts.md).

python run_bench.py script --arm fp32=--mixed_precision=no --arm amp-bf16=--mixed_precision=bf16 \\
    -- accelerate launch --cpu --num_processes 1 docs/examples/scripts/accelerate_mlp.py
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=50)
    options = parser.parse_args()
    accelerator = Accelerator(mixed_precision=options.mixed_precision)
    set_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, options.width), torch.nn.ReLU(), torch.nn.Linear(options.width, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = torch.utils.data.TensorDataset(torch.randn(4096, 256), torch.randint(10, (4096,)))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(options.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()


if __name__ == "__main__":
    main()
