#!/usr/bin/env python3
"""Compares the throughput of completions for many clients at once with the throughput for one client.

    serve.py PROGRAM RUN [--clients 64] [--each 50] [--tokens 32] [--rounds 3]

PROGRAM is residual-zoo, built with the feature `serve`, and RUN is the directory of a run. Each round requests
completions from one client, and then from many clients at once. Each client has its own connection and sends prompts of
several lengths. Prints the tokens per second in both cases, and their ratio. Fails if an answer is missing or has a
different number of tokens.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time

PROMPTS = ["ROMEO:", "What is the matter", "To be, or not to be,\nthat is", "O", "Now is the winter of our discontent"]


def complete(port, count, tokens, first, lost):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    for number in range(count):
        body = {"prompt": PROMPTS[(first + number) % len(PROMPTS)], "max_tokens": tokens, "seed": number}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = json.loads(answer.read())
        if answer.status != 200 or text["usage"]["completion_tokens"] != tokens:
            lost.append((answer.status, text))


def timed(port, clients, each, tokens):
    lost = []
    threads = [
        threading.Thread(target=complete, args=(port, each, tokens, first, lost)) for first in range(clients)
    ]
    start = time.monotonic()
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    if lost:
        sys.exit(f"{len(lost)} completions failed, for example {lost[0]}")
    return clients * each * tokens / (time.monotonic() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("run")
    for name, value in {"clients": 64, "each": 50, "tokens": 32, "rounds": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    server = subprocess.Popen([args.program, "serve", args.run, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+)$", server.stdout.readline().strip())[1])
        timed(port, 1, 3, args.tokens)
        ratios = []
        for _ in range(args.rounds):
            one = timed(port, 1, args.each, args.tokens)
            many = timed(port, args.clients, args.each, args.tokens)
            ratios.append(many / one)
            print(f"one client {one:.0f} tokens/s, {args.clients} clients {many:.0f} tokens/s, ratio {ratios[-1]:.1f}")
        print(f"median ratio {statistics.median(ratios):.1f}")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
