"""A language model of transformers; its batches are dicts, padded to the longest text of each.

python run_bench.py --suite docs/examples/causal_lm.py --quick
"""

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from bench.spec import Suite


def collate(texts):
    ids = pad_sequence([torch.tensor(text) for text in texts], batch_first=True, padding_value=-1)
    mask = ids >= 0
    labels = ids.masked_fill(~mask, -100)  # transformers' label of a token that does not count
    return {"input_ids": ids.clamp(min=0), "attention_mask": mask, "labels": labels}


def batches(split, batch_size, seed):
    count = 128 if split == "train" else 32
    texts = []
    for number in range(count):
        length = 24 + number % 40
        texts.append([(7 * number + place) % 1000 for place in range(length)])
    return DataLoader(texts, batch_size, shuffle=split == "train", collate_fn=collate)


def suite():
    config = GPT2Config(vocab_size=1000, n_positions=64, n_embd=64, n_layer=2, n_head=2)
    return Suite(
        name="causal_lm",
        title="a small GPT-2 of transformers on padded texts",
        model=lambda: GPT2LMHeadModel(config),
        batches=batches,
        loss=lambda model, batch: model(**batch),  # its output has the loss
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-4),
        batch_size=16,
        clip_grad=1.0,
    )
