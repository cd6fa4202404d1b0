#!/usr/bin/python3
"""Writes tests/nn/goldens/{gpt2,llama}.safetensors: a tiny model's weights, and what PyTorch computes from
them in double precision: logits, loss, every gradient, and the losses and weights of 10 AdamW steps.

Run with Debian's python3-torch:  /usr/bin/python3 tests/nn/make_goldens.py
The models are written here from their papers, without Lockstep's code.
"""
import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).parent / "goldens"
VOCAB, T, B, C, LAYERS, HEADS, KV_HEADS, FF = 48, 12, 2, 16, 2, 4, 2, 40
DIM = C // HEADS
THETA = 10000.0


def save(path, tensors):
    header, offset = {}, 0
    kinds = {torch.float32: "F32", torch.int32: "I32"}
    for name, t in tensors.items():
        size = t.numel() * 4
        header[name] = {"dtype": kinds[t.dtype], "shape": list(t.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.contiguous().numpy().tobytes())


def weights(arch):
    """Random values of comparable size everywhere, so that no gradient is lost among larger ones."""
    g = torch.Generator().manual_seed(1)
    shapes = {"wte.weight": (VOCAB, C)}
    llama = arch == "llama"
    if not llama:
        shapes["wpe.weight"] = (T, C)
    for i in range(LAYERS):
        kv = KV_HEADS if llama else HEADS
        layers = {
            "ln_1": (C,), "attn.c_attn": ((HEADS + 2 * kv) * DIM, C), "attn.c_proj": (C, C), "ln_2": (C,),
            **({"mlp.gate_up": (2 * FF, C), "mlp.c_proj": (C, FF)} if llama
               else {"mlp.c_fc": (4 * C, C), "mlp.c_proj": (C, 4 * C)}),
        }
        for name, shape in layers.items():
            shapes[f"h.{i}.{name}.weight"] = shape
            if not llama:
                shapes[f"h.{i}.{name}.bias"] = shape[:1]
    shapes["ln_f.weight"] = (C,)
    if llama:
        shapes["lm_head.weight"] = (VOCAB, C)
    else:
        shapes["ln_f.bias"] = (C,)
    out = {}
    for name, shape in shapes.items():
        w = torch.randn(shape, generator=g) * 0.2
        if "ln_" in name and name.endswith("weight"):
            w += 1
        out[name] = w
    return out


def rotate(x):
    """Rotary positions on (B, H, T, D): pairs (i, i + D/2) turn by t * theta^(-2i/D)."""
    half = DIM // 2
    angle = torch.arange(T, dtype=torch.float64)[:, None] * THETA ** (
        -2 * torch.arange(half, dtype=torch.float64) / DIM)
    c, s = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * c - b * s, b * c + a * s], -1)


def logits(arch, w, tokens):
    llama = arch == "llama"
    kv = KV_HEADS if llama else HEADS

    def norm(x, name):
        if llama:
            return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w[name + ".weight"]
        return F.layer_norm(x, (C,), w[name + ".weight"], w[name + ".bias"], 1e-5)

    def linear(x, name):
        return F.linear(x, w[name + ".weight"], None if llama else w[name + ".bias"])

    x = F.embedding(tokens, w["wte.weight"])
    if not llama:
        x = x + w["wpe.weight"]
    for i in range(LAYERS):
        h = f"h.{i}."
        qkv = linear(norm(x, h + "ln_1"), h + "attn.c_attn")
        q, k, v = (p.view(B, T, -1, DIM).transpose(1, 2) for p in qkv.split([HEADS * DIM, kv * DIM, kv * DIM], -1))
        if llama:
            q, k = rotate(q), rotate(k)
        k, v = (p.repeat_interleave(HEADS // kv, 1) for p in (k, v))
        scores = q @ k.transpose(-1, -2) / math.sqrt(DIM)
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
        o = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C)
        x = x + linear(o, h + "attn.c_proj")
        y = norm(x, h + "ln_2")
        if llama:
            gate, up = linear(y, h + "mlp.gate_up").chunk(2, -1)
            y = F.silu(gate) * up
        else:
            y = linear(y, h + "mlp.c_fc")
            y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, h + "mlp.c_proj")
    x = norm(x, "ln_f")
    return F.linear(x, w["lm_head.weight" if llama else "wte.weight"])


for arch in ("gpt2", "llama"):
    start = weights(arch)
    g = torch.Generator().manual_seed(2)
    text = torch.randint(VOCAB, (B, T + 1), generator=g)
    tokens, targets = text[:, :-1], text[:, 1:]
    w = {n: t.double().requires_grad_() for n, t in start.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [t for t in w.values() if t.dim() >= 2], "weight_decay": 0.1},
         {"params": [t for t in w.values() if t.dim() < 2], "weight_decay": 0.0}],
        lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    out = {"weight/" + n: t for n, t in start.items()}
    out["tokens"], out["targets"] = tokens.int(), targets.int()
    losses = []
    for step in range(10):
        optimizer.zero_grad()
        y = logits(arch, w, tokens)
        loss = F.cross_entropy(y.reshape(-1, VOCAB), targets.reshape(-1))
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            out["logits"] = y.detach().float()
            out.update({"grad/" + n: t.grad.float() for n, t in w.items()})
        optimizer.step()
    out["losses"] = torch.tensor(losses)
    out.update({"after/" + n: t.detach().float() for n, t in w.items()})
    HERE.mkdir(exist_ok=True)
    save(HERE / f"{arch}.safetensors", out)
    print(arch, [f"{x:.4f}" for x in losses], sum(t.numel() for t in start.values()), "parameters")
