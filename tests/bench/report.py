#!/usr/bin/env python3
"""What the scripts of this folder share: run a command and keep its figures, describe the machine,
and make tables of pairs. Standard library only.

    report.py run FILE KEY=VALUE... -- COMMAND   runs it with --json; appends one line to FILE
    report.py machine                            processor, commit, date, as markdown
    report.py settings FILE MODEL                PyTorch's settings worth more rounds, one per line
    report.py run_of FILE RUN_FOLDER KEY=VALUE...  appends how well that run learned to FILE
    report.py rate FILE PRECISION RATIO          Mbit/s at which communicating takes RATIO x computing
    report.py link FILE                          Mbit/s that the last run had
    report.py compare|scaling|allreduce|stages|learning|hosts FILE    the table, as markdown
"""
import datetime
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile


def run(path, *words):
    split = words.index("--")
    tags = dict(word.split("=", 1) for word in words[:split])
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [*words[split + 1:], "--json", file.name]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{done.stdout}\nexit code {done.returncode}: {' '.join(command)}")
        result = json.load(open(file.name))
    # Of the largest process below this one: what the whole program held, not only its tensors.
    rss = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    with open(path, "a") as out:
        out.write(json.dumps({"tags": tags, "rss": rss, "result": result}) + "\n")
    rate = result.get("tokens_per_s", {}).get("median")
    print(" ".join(words[:split]), f"{rate:.0f} tokens/s" if rate else "", file=sys.stderr)


def run_of(path, run, *words):
    """Keeps what a run folder's metrics say about how well it learned."""
    with open(f"{run}/metrics.jsonl") as file:
        steps = [json.loads(line) for line in file]
    losses = [s["val_loss"] for s in steps if "val_loss" in s]
    result = {"val_loss": losses[-1], "compression": steps[-1]["compression"],
              "wire_bytes": steps[-1]["wire_bytes"], "steps": steps[-1]["step"]}
    with open(path, "a") as out:
        tags = dict(word.split("=", 1) for word in words)
        out.write(json.dumps({"tags": tags, "result": result}) + "\n")
    print(*words, f"val_loss {losses[-1]:.4f}", file=sys.stderr)


def read(path, **wanted):
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    return [x for x in lines if all(x["tags"].get(k) == v for k, v in wanted.items())]


def machine():
    with open("/proc/cpuinfo") as file:
        cpu = dict(re.findall(r"(\S[^\t\n]*?)\s*: (.*)", file.read()))
    flags = cpu.get("flags", "").split()
    isa = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in flags]
    name = f"{cpu.get('model name', platform.machine())}, model {cpu.get('model', 'unknown')}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9

    def git(*arguments):
        return subprocess.run(["git", "-C", os.path.dirname(os.path.abspath(__file__)), *arguments],
                              capture_output=True, text=True).stdout.strip()
    changed = " with changes" if git("status", "--porcelain", "--untracked-files=no") else ""
    print(f"- machine: {name}, {os.cpu_count()} cores, {memory:.0f} GB; {' '.join(isa)}")
    print(f"- load when it began: {os.getloadavg()[0]:.1f} (numbers count below 0.5)")
    print(f"- commit: {git('rev-parse', '--short', 'HEAD')}{changed}")
    print(f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC")


def rate(entry):
    return entry["result"]["tokens_per_s"]["median"]


def spread(values, digits):
    middle, least, most = (f"{f(values):.{digits}f}" for f in (statistics.median, min, max))
    return f"{middle} ({least} to {most})"


def median(values):
    return statistics.median(list(values))


def setting(entry):
    return tuple(entry["tags"][k] for k in ("precision", "mode", "threads", "core"))


# The rows of the comparison: fp32 twice, as OpenBLAS guesses the processor and as it is told.
ROWS = (("fp32", "guessed"), ("fp32", "told"), ("bf16", "guessed"))


def settings(path, model):
    """Of each row, the settings that were within 10 % of its best in round 0."""
    for precision, core in ROWS:
        tried = read(path, who="pytorch", model=model, round="0", precision=precision, core=core)
        for entry in tried:
            if rate(entry) >= 0.9 * max(map(rate, tried)):
                print(*setting(entry))


def compare(path):
    print("Tokens/s: median over rounds. Ratio: Lockstep's of a round over that of PyTorch's best "
          "setting in the same round;\nmedian (least to largest). Memory: peak resident set of the "
          "process; in brackets the peak of Lockstep's allocator.\n")
    print("| model | precision | Lockstep | PyTorch | ratio | MFU | memory, MB | PyTorch's, MB "
          "| PyTorch's setting |\n|---|---|---|---|---|---|---|---|---|")
    models = dict.fromkeys(x["tags"]["model"] for x in read(path))
    for model in models:
        for precision, core in ROWS:
            ours = read(path, who="lockstep", model=model, precision=precision)
            rounds = dict.fromkeys(x["tags"]["round"] for x in ours)
            theirs = read(path, who="pytorch", model=model, precision=precision, core=core)
            theirs = [x for x in theirs if x["tags"]["round"] in rounds]
            if not ours or not theirs:
                continue
            best = {r: max((x for x in theirs if x["tags"]["round"] == r), key=rate)
                    for r in rounds}
            ratios = [rate(x) / rate(best[x["tags"]["round"]]) for x in ours]
            used = statistics.mode(setting(x)[1:3] for x in best.values())
            blas = f", {best[next(iter(rounds))]['result']['blas']}" if precision == "fp32" else ""
            print(f"| {model} | {precision} | {median(map(rate, ours)):.0f} "
                  f"| {median(map(rate, best.values())):.0f} | {spread(ratios, 2)} "
                  f"| {median(x['result']['mfu']['median'] for x in ours):.3f} "
                  f"| {1e-6 * median(x['rss'] for x in ours):.0f} "
                  f"({1e-6 * median(x['result']['memory']['total']['peak'] for x in ours):.0f}) "
                  f"| {1e-6 * median(x['rss'] for x in best.values()):.0f} "
                  f"| {used[0]}, {used[1]} threads{blas} |")
    print("\nPyTorch's settings, round 0:\n\n| model | parameters | threads | OpenBLAS's core type | tokens/s "
          "|\n|---|---|---|---|---|")
    for x in read(path, who="pytorch", round="0"):
        t = x["tags"]
        print(f"| {t['model']} | {t['mode']} | {t['threads']} | {x['result']['blas']}, {t['core']} "
              f"| {rate(x):.0f} |")


def scaling(path):
    print("Efficiency: tokens/s of a rank of two over tokens/s of one alone, round by round; median (least "
          "to largest).\nThe stranger's: tokens/s of one beside a process it shares only the machine with, "
          "over one alone. Of the two: what\ndata parallelism costs when the machine's part is taken "
          "out.\n\n| program | precision | rounds | 1 rank | 2 ranks | efficiency | stranger's | of the two "
          "| MFU, 2 ranks |\n|---|---|---|---|---|---|---|---|---|")
    for who in ("lockstep", "pytorch"):
        for precision in ("fp32", "bf16"):
            one, beside, two = ([rate(e) for e in sorted(read(path, who=who, precision=precision, ranks=n),
                                                         key=lambda e: int(e["tags"]["round"]))]
                                for n in ("1", "1+1", "2"))
            if not one:
                continue
            efficiency = [b / (2 * a) for a, b in zip(one, two)]
            apart = [b / a for a, b in zip(one, beside)]
            of_both = [b / (2 * a) for a, b in zip(beside, two)]
            mfu = [e["result"]["mfu"]["median"] for e in read(path, who=who, precision=precision, ranks="2")
                   if "mfu" in e["result"]]
            print(f"| {who} | {precision} | {len(one)} | {median(one):.0f} | {median(two):.0f} "
                  f"| {spread(efficiency, 3)} | {spread(apart, 3) if apart else ''} "
                  f"| {spread(of_both, 3) if of_both else ''} | {spread(mfu, 3) if mfu else ''} |")


def allreduce(path):
    print("Bus bandwidth in GB/s between 2 ranks of this host: median over repetitions; ratio: median "
          "(least to largest).\nLockstep sums in place; MPI_Allreduce does so, or has a send and a receive "
          "buffer.\n\n| MB | MPI's buffers | repetitions | Lockstep | MPI_Allreduce | ratio | wrong |\n"
          "|---|---|---|---|---|---|---|")
    sizes = {}
    for entry in read(path):
        for row in entry["result"]["rows"]:
            if row["collective"] == "all_reduce":
                sizes.setdefault((row["bytes"], entry["tags"]["buffers"]), []).append(row)
    if not sizes:
        raise SystemExit(f"report.py: no all_reduce rows in {path}")
    for (size, buffers), rows in sorted(sizes.items()):
        ratios = [r["ours"]["busbw"] / r["mpi"]["busbw"] for r in rows]
        print(f"| {size / 2**20:.0f} | {buffers} | {len(rows)} "
              f"| {median(r['ours']['busbw'] for r in rows):.2f} "
              f"| {median(r['mpi']['busbw'] for r in rows):.2f} | {spread(ratios, 2)} "
              f"| {sum(r['ours']['wrong'] for r in rows)} |")


def stages(path):
    entries = read(path)
    base = {e["tags"]["round"]: e["result"] for e in entries if e["tags"]["stage"] == "0"}
    print("Step time over that of stage 0 in the same round; median (least to largest). Exposed: "
          "communication that\nbackward and forward did not hide, median of medians.\n\n"
          "| zero_stage | rounds | step, ms | over stage 0 | exposed, ms | peak memory, MB |\n"
          "|---|---|---|---|---|---|")
    for stage in sorted({e["tags"]["stage"] for e in entries}):
        mine = read(path, stage=stage)
        step = [e["result"]["step_ms"]["median"] for e in mine]
        ratios = [ms / base[e["tags"]["round"]]["step_ms"]["median"] for ms, e in zip(step, mine)]
        exposed = median(e["result"]["exposed_comm_ms"]["median"] for e in mine)
        peak = median(e["result"]["memory"]["total"]["peak"] for e in mine)
        print(f"| {stage} | {len(mine)} | {median(step):.0f} | {spread(ratios, 3)} | {exposed:.1f} "
              f"| {1e-6 * peak:.0f} |")


def learning(path):
    seeds = sorted({entry["tags"]["seed"] for entry in read(path)})
    plain = {seed: read(path, seed=seed, codec="none")[0]["result"] for seed in seeds}
    first = plain[seeds[0]]
    print(f"Validation loss, nats per byte, after {first['steps']} steps; against codec none of the same "
          "seed.\nCompression: of what the codec encodes; of the step: everything on the wire.\n\n"
          "| codec | optimizer | error feedback | compression | of the step |"
          + "".join(f" seed {seed} | against none |" for seed in seeds)
          + "\n|---|---|---|---|---|" + "---|---|" * len(seeds))
    fields = ("codec", "optimizer", "error_feedback")
    kinds = dict.fromkeys(tuple(e["tags"][field] for field in fields) for e in read(path))
    for kind in kinds:
        codec, optimizer, fed = kind
        entries = {seed: read(path, seed=seed, **dict(zip(fields, kind)))[0]["result"]
                   for seed in seeds}
        one = entries[seeds[0]]
        print(f"| {codec} | {optimizer} | {'' if codec == 'none' else 'yes' if fed == 'true' else 'no'} "
              f"| {one['compression']:.1f} | {first['wire_bytes'] / one['wire_bytes']:.1f} |"
              + "".join(f" {entries[s]['val_loss']:.4f} "
                        f"| {100 * (entries[s]['val_loss'] / plain[s]['val_loss'] - 1):+.2f} % |"
                        for s in seeds))


def rate_for(path, precision, ratio):
    free = read(path, who="lockstep", precision=precision, ratio="0")[0]["result"]["overlap"]
    seconds = float(ratio) * free["compute_alone_ms"] / 1000
    print(round(free["link_bytes"] * 8e-6 / seconds))


def link(path):
    print(f"{read(path)[-1]['result']['overlap']['link_mbit']:.1f}")


def of_overlap(entries, field):
    return median(x["result"]["overlap"][field] for x in entries)


def ddp_ms(entries, precision):
    """A step of PyTorch's, from its tokens/s: each rank has 2048 tokens per step."""
    tokens = 2048 * 2
    return f"{1000 * tokens / median(map(rate, entries)):.0f}" if entries else ""


def hosts(path):
    print("Milliseconds, median over rounds of the median over steps. Bound: of the schedule, as "
          "`trainer bench step --help` defines it.\n\n| precision | communicating / computing, planned | "
          "link, Mbit/s | computing alone | communicating alone | one after the other | bound | "
          "step | step / bound | PyTorch DDP |\n|---|---|---|---|---|---|---|---|---|---|")
    everything = read(path, codec="none")
    for precision in dict.fromkeys(x["tags"]["precision"] for x in everything):
        for ratio in sorted({x["tags"]["ratio"] for x in everything}, key=float):
            ours = read(path, who="lockstep", precision=precision, ratio=ratio, codec="none")
            theirs = read(path, who="pytorch", precision=precision, ratio=ratio)
            if not ours:
                continue
            alone = [of_overlap(ours, f"{what}_alone_ms") for what in ("compute", "comm")]
            over = [x["result"]["overlap"]["over_bound"] for x in ours]
            print(f"| {precision} | {ratio if ratio != '0' else 'no limit'} | {ours[0]['tags']['mbit']} "
                  f"| {alone[0]:.0f} | {alone[1]:.0f} | {sum(alone):.0f} "
                  f"| {of_overlap(ours, 'bound_ms'):.0f} | {of_overlap(ours, 'step_ms'):.0f} "
                  f"| {spread(over, 2)} | {ddp_ms(theirs, precision)} |")
    coded = [x for x in read(path, who="lockstep", ratio="4") if x["tags"]["codec"] != "none"]
    if not coded:
        return
    print("\nCodecs, fp32, where communicating uncompressed takes 4 x computing. Predicted: the bound "
          "with the bytes of the codec, at the rate that the uncompressed run had.\n\n| codec | MB per step and "
          "host | predicted | step | step / predicted | x as fast as none |\n|---|---|---|---|---|---|")
    plain = of_overlap(read(path, who="lockstep", ratio="4", codec="none"), "step_ms")
    for codec in dict.fromkeys(x["tags"]["codec"] for x in coded):
        ours = [x for x in coded if x["tags"]["codec"] == codec]
        over = [x["result"]["overlap"]["over_bound"] for x in ours]
        print(f"| {codec} | {1e-6 * of_overlap(ours, 'link_bytes'):.2f} | {of_overlap(ours, 'bound_ms'):.0f} "
              f"| {of_overlap(ours, 'step_ms'):.0f} | {spread(over, 2)} "
              f"| {plain / of_overlap(ours, 'step_ms'):.2f} |")


if __name__ == "__main__":
    commands = {f.__name__: f for f in (run, machine, settings, compare, scaling, allreduce,
                                      run_of, stages, learning, link, hosts)}
    commands["rate"] = rate_for
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        raise SystemExit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
