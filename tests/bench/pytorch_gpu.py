#!/usr/bin/env python3
"""GPT-2 training steps in PyTorch on a GPU, for tests/gpu.sh: the shapes of a Lockstep config, random
tokens, median tokens/s. bf16 autocast over fp32 weights, fused attention and AdamW, as eager and
compiled; neither reads data nor saves anything. The CPU's twin is pytorch_gpt2.py.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.fc_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(self.ln_1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, args):
        super().__init__()
        self.wte, self.wpe = (nn.Embedding(n, args.width) for n in (args.vocab, args.seq_len))
        self.blocks = nn.ModuleList(Block(args.heads, args.width) for _ in range(args.layers))
        self.ln_f = nn.LayerNorm(args.width)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


def median_rate(args, model):
    groups = [{"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)
    times = []
    for step in range(args.warmup + args.steps):
        tokens, targets = torch.randint(args.vocab, (2, args.batch, args.seq_len),
                                        device="cuda").unbind()
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        if step >= args.warmup:
            times.append(time.perf_counter() - start)
    return args.batch * args.seq_len / statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for name, default in (("batch", 8), ("seq-len", 256), ("layers", 6), ("heads", 6),
                          ("width", 384), ("vocab", 8192), ("warmup", 4), ("steps", 15)):
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Gpt2(args).cuda()
    for name, run in (("eager", model), ("compiled", torch.compile(model))):
        print(f"pytorch {torch.__version__} {name}: {median_rate(args, run):.0f} tokens/s, "
              f"peak {1e-9 * torch.cuda.max_memory_allocated():.1f} GB", flush=True)


if __name__ == "__main__":
    main()
