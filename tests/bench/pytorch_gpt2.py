#!/usr/bin/python3
"""GPT-2 training steps in PyTorch on the CPU: the shapes of a Lockstep config, random tokens, median
tokens/s. Written for Debian 12's python3-torch (1.13) in the way that is fastest there, so that the
comparison is with PyTorch at its best; it neither reads data nor saves anything. compare.sh runs it.

    /usr/bin/python3 tests/bench/pytorch_gpt2.py --precision bf16 --threads 2 --steps 10

No step of it is left out or added against Lockstep's: forward, backward, clip to norm 1, AdamW with
decay on matrices only; logits and loss in fp32.
"""
import argparse
import ctypes
import json
import math
import os
import resource
import statistics
import time

# Libraries count their threads when they are loaded, so torch is imported when their number is known.
torch = F = None


def import_torch(threads):
    global torch, F
    os.environ["OMP_NUM_THREADS"] = str(threads)
    import torch as imported
    torch, F = imported, imported.nn.functional
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return torch


def make_gpt2(layers, heads, width, vocab, seq_len):
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.fc_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x, mask):  # x (B, T, C), mask (T, T) of 0 and -inf
            B, T, C = x.shape
            q, k, v = self.qkv(self.ln_1(x)).split(C, dim=2)
            q, k, v = (t.view(B, T, heads, C // heads).transpose(1, 2) for t in (q, k, v))
            # 1.13 has no fused attention for the CPU. The scale goes to the smallest tensor, the
            # mask is added in place.
            scores = (q * (1 / math.sqrt(C // heads))) @ k.transpose(2, 3)
            y = F.softmax(scores.add_(mask), dim=-1) @ v
            x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
            return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(seq_len, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.ln_f = nn.LayerNorm(width)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)
            mask = torch.full((seq_len, seq_len), -math.inf).triu(1)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, tokens, targets):  # both (B, T)
            x = self.wte(tokens) + self.wpe.weight
            # Under autocast the scores are bf16 and cannot take fp32 in place.
            mask = self.mask.bfloat16() if torch.is_autocast_cpu_enabled() else self.mask
            for block in self.blocks:
                x = block(x, mask)
            logits = F.linear(self.ln_f(x), self.wte.weight)  # tied head
            return F.cross_entropy(logits.view(-1, vocab).float(), targets.view(-1))

    return Gpt2()


class Optimizer:
    """Clip and AdamW over fp32 masters. With fp32 parameters the masters are the parameters."""

    def __init__(self, model):
        self.params = list(model.parameters())
        self.copies = self.params[0].dtype != torch.float32
        self.masters = [p.detach().float() for p in self.params] if self.copies else self.params
        groups = [{"params": [m for m in self.masters if m.dim() >= 2], "weight_decay": 0.1},
                  {"params": [m for m in self.masters if m.dim() < 2], "weight_decay": 0.0}]
        self.adamw = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), foreach=True)

    def step(self):
        if self.copies:
            for p, m in zip(self.params, self.masters):
                m.grad, p.grad = p.grad.float(), None
        grads = [m.grad for m in self.masters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
        if norm > 1:
            torch._foreach_mul_(grads, 1 / norm.item())
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self.copies:
            with torch.no_grad():
                for p, m in zip(self.params, self.masters):
                    p.copy_(m)


def time_steps(args, model, optimizer):
    """Seconds of each step that counts, and the last loss."""
    autocast = args.precision == "autocast"
    times = []
    for step in range(args.warmup + args.steps):
        start = time.perf_counter()
        tokens, targets = torch.randint(args.vocab, (2, args.batch, args.seq_len)).unbind()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        loss = loss.item()
        if step >= args.warmup:
            times.append(time.perf_counter() - start)
    if not math.isfinite(loss):
        raise SystemExit(f"pytorch: loss {loss} after {args.warmup + args.steps} steps")
    return times, loss


def loaded_blas():
    """The library that fp32's matrix products come from, and the core type it chose its kernels for.
    An OpenBLAS older than the processor may take it for a Prescott and be several times slower."""
    with open("/proc/self/maps") as maps:
        paths = sorted({line.split()[-1] for line in maps if "blas" in line.rsplit("/", 1)[-1]})
    for path in (p for p in paths if "libopenblas" in p):
        corename = ctypes.CDLL(path).openblas_get_corename
        corename.restype = ctypes.c_char_p
        return f"OpenBLAS for {corename().decode()}"
    raise SystemExit(f"pytorch: no OpenBLAS among {paths}, PyTorch would be far too slow; "
                     "apt-get install libopenblas0-pthread")


def report(args, times, loss, ranks=1):
    tokens = args.batch * args.seq_len * ranks
    rates = sorted(tokens / t for t in times)
    result = {
        "precision": args.precision, "ranks": ranks, "threads": args.threads,
        "tokens_per_s": {"median": statistics.median(rates), "min": rates[0], "max": rates[-1]},
        "loss": loss, "torch": torch.__version__, "blas": loaded_blas(),
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    print(f"pytorch {torch.__version__} {args.precision}, {ranks} ranks x {args.threads} threads: "
          f"{result['tokens_per_s']['median']:.0f} tokens/s ({rates[0]:.0f} to {rates[-1]:.0f}), "
          f"peak RSS {1e-6 * result['peak_rss_bytes']:.0f} MB, loss {loss:.3f}, {result['blas']}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(result, file)


def argument_parser(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--precision", choices=["fp32", "bf16", "autocast"], default="fp32",
                        help="bf16: bf16 parameters, fp32 masters; autocast: fp32 parameters, bf16 "
                        "matrix products (default: %(default)s)")
    for name, default in (("threads", 1), ("batch", 8), ("seq-len", 256), ("layers", 6),
                          ("heads", 6), ("width", 384), ("vocab", 8192), ("warmup", 2),
                          ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    parser.add_argument("--json", help="write the figures there, too")
    return parser


def build(args):
    """The model, in the precision of its parameters."""
    import_torch(args.threads)
    model = make_gpt2(args.layers, args.heads, args.width, args.vocab, args.seq_len)
    return model.bfloat16() if args.precision == "bf16" else model


def main():
    args = argument_parser(__doc__.split("\n", 1)[0]).parse_args()
    model = build(args)
    report(args, *time_steps(args, model, Optimizer(model)))


if __name__ == "__main__":
    main()
