"""LoRA: adapters of peft on a small Llama of transformers (Hu et al., 2021).

The weights of the model itself stay as they are.

python run_bench.py --suite docs/examples/lora.py --quick
"""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from bench.spec import Suite


def batches(split, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(8 if split == "train" else 2):
        ids = torch.randint(1000, (batch_size, 64), generator=generator)
        yield {"input_ids": ids, "labels": ids}


def suite(rank=8):
    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    adapters = LoraConfig(r=rank, target_modules=["q_proj", "v_proj"])
    return Suite(
        name="lora",
        title="LoRA on a small Llama",
        model=lambda: get_peft_model(LlamaForCausalLM(config), adapters),
        batches=batches,
        loss=lambda model, batch: model(**batch),
        optimizer=lambda model: torch.optim.AdamW(
            [p for p in model.parameters() if p.requires_grad], lr=1e-3
        ),
        batch_size=8,
    )
