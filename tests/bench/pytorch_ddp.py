#!/usr/bin/python3
"""The model and step of pytorch_gpt2.py under PyTorch's DistributedDataParallel over gloo: one
process per rank on this host, one thread and one core each. scaling.sh runs it.

    /usr/bin/python3 tests/bench/pytorch_ddp.py --ranks 2 --precision autocast --steps 10

--ranks 1 is the plain model without DDP on one core: what a rank does alone. Under mpirun it is one
rank of those that mpirun started; hosts.sh does that, with MASTER_ADDR and MASTER_PORT set.
"""
import os
import socket
import subprocess
import sys

import pytorch_gpt2


def launch(ranks):
    """This script once per rank, each on its own core before any library is loaded."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        raise SystemExit(f"pytorch_ddp: {ranks} ranks on {len(cores)} cores; use fewer ranks")
    processes = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_PORT=str(port),
                           MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
        command = ["taskset", "-c", str(cores[rank]), sys.executable, *sys.argv]
        processes.append(subprocess.Popen(command, env=environment))
    return int(any([p.wait() for p in processes]))


def main():
    parser = pytorch_gpt2.argument_parser(__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=2, help="default: %(default)s")
    args = parser.parse_args()
    if args.precision == "bf16":
        parser.error("gloo sums no bf16 gradients: use --precision autocast")
    if args.threads != 1:
        parser.error("each rank has one core: use --threads 1")
    for torchs, mpiruns in (("RANK", "OMPI_COMM_WORLD_RANK"), ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
        if mpiruns in os.environ:
            os.environ[torchs] = os.environ[mpiruns]
    if "RANK" not in os.environ:
        raise SystemExit(launch(args.ranks))

    bare = model = pytorch_gpt2.build(args)
    rank = int(os.environ["RANK"])
    if args.ranks > 1:
        import torch.distributed
        from torch.nn.parallel import DistributedDataParallel
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(bare, gradient_as_bucket_view=True, broadcast_buffers=False)
    times, loss = pytorch_gpt2.time_steps(args, model, pytorch_gpt2.Optimizer(bare))
    if rank == 0:
        pytorch_gpt2.report(args, times, loss, args.ranks)


if __name__ == "__main__":
    main()
