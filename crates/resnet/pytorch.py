#!/usr/bin/env python3
"""Trains ResNet-20 on CIFAR-10 in PyTorch and in this project, with the recipe of cifar-cpu.ron.

Both train on the same images for the same number of steps, one after the other for each seed. Prints the accuracy on
the test images and the median time of a step. PyTorch's time excludes drawing the images.

    crates/resnet/pytorch.py --data cifar-10-batches-bin --program target/release/residual-zoo [-- --backend tch]
"""
import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.stride, self.added = stride, width - channels

    def forward(self, x):
        f = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if self.stride > 1:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return F.relu(x + f)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        sizes = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
        self.blocks = nn.Sequential(*(Block(*size) for size in sizes))
        self.head = nn.Linear(64, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images):
        x = self.blocks(F.relu(self.norm(self.conv(images))))
        return self.head(x.mean((2, 3)))


def read(directory, names):
    """Images [count, 3, 32, 32] in 0 to 255, and classes [count]."""
    data = b"".join((directory / name).read_bytes() for name in names)
    records = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32).float(), records[:, 0].long()


def augmented(images):
    """Returns a random crop of each image with a border of four pixels, mirrored in half of the cases."""
    padded = F.pad(images, (4, 4, 4, 4))
    at = torch.randint(0, 9, (2, len(images)))
    views = torch.stack([image[:, y : y + 32, x : x + 32] for image, y, x in zip(padded, *at)])
    mirrored = torch.rand(len(images)) < 0.5
    views[mirrored] = views[mirrored].flip(3)
    return views


def pytorch(directory, steps, seed):
    torch.manual_seed(seed)
    names = sorted(path.name for path in directory.glob("data_batch_*.bin"))
    (train, classes), (test, expected) = read(directory, names), read(directory, ["test_batch.bin"])
    mean, std = train.mean((0, 2, 3), keepdim=True), train.std((0, 2, 3), keepdim=True)
    # The faster layout of PyTorch on CPUs.
    model = ResNet20().to(memory_format=torch.channels_last)
    weights = [p for p in model.parameters() if p.dim() == 4]
    others = [p for p in model.parameters() if p.dim() < 4]
    groups = [{"params": weights, "weight_decay": 1e-4}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    warmup = min(75, steps // 2)
    fall = max(steps - 1 - warmup, 1)
    rate = lambda i: (i + 1) / (warmup + 1) if i < warmup else 0.5 + 0.5 * math.cos(math.pi * (i - warmup) / fall)
    times = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * rate(step)
        picked = torch.randint(0, len(train), (128,))
        # As in this project, the border is black, so it is added before normalisation.
        images = ((augmented(train[picked]) - mean) / std).contiguous(memory_format=torch.channels_last)
        start = time.perf_counter()
        loss = F.cross_entropy(model(images), classes[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
    model.eval()
    with torch.no_grad():
        found = torch.cat([model((part - mean) / std).argmax(1) for part in test.split(500)])
    return (found == expected).float().mean().item(), statistics.median(times)


def residual_zoo(program, directory, steps, seed, options):
    with tempfile.TemporaryDirectory() as scratch:
        run = pathlib.Path(scratch) / "run"
        fields = [f"train.steps={steps}", f"train.warmup={min(75, steps // 2)}", f"train.seed={seed}", "train.log_every=1"]
        sets = [argument for field in fields for argument in ("--set", field)]
        command = [program, "train", "resnet/cifar-cpu", "--data", directory, "--run", run, *sets, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        accuracies = [row["valid_accuracy"] for row in rows if row.get("valid_accuracy")]
        rates = [row["tokens_per_second"] for row in rows if row.get("tokens_per_second")]
        return accuracies[-1], 128 / statistics.median(rates)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", type=pathlib.Path, required=True)
parser.add_argument("--program", required=True)
parser.add_argument("--steps", type=int, default=1500)
parser.add_argument("--seeds", type=int, nargs="+", default=[1])
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("options", nargs="*", help="options of residual-zoo train, after --")
given = parser.parse_args()
torch.set_num_threads(given.threads)
print(f"{'':14} {'seed':>4} {'accuracy':>9} {'step':>8}")
for seed in given.seeds:
    for name, of in [
        ("PyTorch", lambda: pytorch(given.data, given.steps, seed)),
        ("residual-zoo", lambda: residual_zoo(given.program, given.data, given.steps, seed, given.options)),
    ]:
        accuracy, step = of()
        print(f"{name:14} {seed:4} {100 * accuracy:7.2f} % {1000 * step:5.0f} ms")
        sys.stdout.flush()
