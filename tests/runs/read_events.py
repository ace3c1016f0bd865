#!/usr/bin/env python3
"""Prints the data that TensorBoard reads from a run, as JSON: scalars and texts by tag, each a list of [step, value].

    read_events.py FOLDER
"""

import json
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

if len(sys.argv) != 2:
    sys.exit(__doc__)
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
tags = events.Tags()
scalars = {tag: [[point.step, point.value] for point in events.Scalars(tag)] for tag in tags["scalars"]}
texts = {
    tag: [[point.step, point.tensor_proto.string_val[0].decode()] for point in events.Tensors(tag)]
    for tag in tags["tensors"]
}
print(json.dumps({"scalars": scalars, "texts": texts}))
