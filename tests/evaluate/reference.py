#!/usr/bin/env python3
"""Evaluates a model with lm_eval, for tests/evaluate.

    reference.py MODEL TASKS OUT [KEY=VALUE...]

MODEL is an exported directory, run by transformers, or the address of a server with OpenAI's API,
http://HOST:PORT/v1/completions; `dummy` makes up its answers. Further arguments go to lm_eval's model. TASKS is a
folder with one JSON Lines file for each task. OUT gets the metrics and the samples as JSON. The tasks are lm_eval's
own, with these files as their data.
"""

import json
import sys
import time
from pathlib import Path

import lm_eval
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

OFFICIAL = {
    "lambada": "lambada/lambada_openai.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "piqa": "piqa/piqa.yaml",
    "arc": "arc/arc_easy.yaml",
    "winogrande": "winogrande/default.yaml",
    "wikitext": "wikitext/wikitext.yaml",
}


def asked(sample):
    """Returns lm_eval's requests for a document: the texts, and either the numbers of words and bytes or the right
    choice."""
    texts = [list(arguments) for arguments in sample["arguments"]]
    if "word_perplexity" in sample:
        return {"texts": texts, "words": sample["word_perplexity"][1], "bytes": sample["byte_perplexity"][1]}
    return {"texts": texts, "target": sample["target"]}


def main(model, tasks, out, *more):
    tasks, out = Path(tasks), Path(out)
    folder = out.with_suffix(".tasks")
    folder.mkdir()
    names = [name for name in OFFICIAL if (tasks / f"{name}.jsonl").exists()]
    for name in names:
        data = str((tasks / f"{name}.jsonl").resolve())
        official = Path(lm_eval.__file__).parent / "tasks" / OFFICIAL[name]
        splits = {split: data for split in ("train", "validation", "test")}
        (folder / f"zoo_{name}.yaml").write_text(
            f"include: {official}\ntask: zoo_{name}\ndataset_path: json\ndataset_name: null\n"
            f"dataset_kwargs:\n  data_files: {json.dumps(splits)}\n"
        )
    if model == "dummy":
        kind, arguments = "dummy", {}
    elif model.startswith("http"):
        kind, arguments = "local-completions", {"base_url": model, "model": "zoo", "tokenized_requests": True}
    else:
        # In f32, the sum of the log-likelihoods of a whole text is rounded by up to 1.2e-4 at -2,100, so lm_eval
        # computes the softmax in f64.
        kind, arguments = "hf", {"pretrained": model, "trust_remote_code": True, "dtype": "float32"}
        arguments["softmax_dtype"] = "float64"
    arguments |= {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in more)}
    start = time.monotonic()
    found = lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=[f"zoo_{name}" for name in names],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        log_samples=True,
        bootstrap_iters=0,
        batch_size=8,
        device="cpu",
        confirm_run_unsafe_code=True,
    )
    print(make_table(found), f"{time.monotonic() - start:.1f} s")
    results = {}
    for name in names:
        samples = sorted(found["samples"][f"zoo_{name}"], key=lambda sample: sample["doc_id"])
        results[name] = {
            "metrics": {key: value for key, value in found["results"][f"zoo_{name}"].items() if "," in key},
            "samples": [[response[0] for response in sample["resps"]] for sample in samples],
            "documents": [asked(sample) for sample in samples],
        }
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
