"""Fine-tuning speed: this package against transformers' Trainer, same model, rows, batch, epochs, dropout, precision.

    python benchmarks/finetune_speed.py --model MODEL --data DIR --out RESULT.json --device cpu --threads 2 --rows 640
    python benchmarks/finetune_speed.py --model MODEL --data DIR --out RESULT.json --device cuda --epochs 2

Both read rows that are tokenized already; the first step is not counted, recording CUDA graphs is. Trainer runs as it
does best: fused AdamW, bfloat16 on CUDA, no log, no evaluation; once in random order and once grouped by length.
Rounds are interleaved, because machines are shared; the ratio is of medians, against the better of Trainer's two. On
the CPU there is a second ratio, by the process's own seconds on the cores: what others do at the time is not in it.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from finetune_peer import load_peer
from finetune_tasks import find_task, prepare_task, settings_of

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.session import open_session
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.train.distributed import Ranks
from bertkit.train.runs import Run

TASKS = ("sst2", "conll2003")


def ours(begin: Checkpoint, prepared: Prepared, settings: FineTuneSettings, device: str) -> "Pace":
    """Examples a second of all steps but the first."""
    start, place = load_start(begin, prepared.task, settings), Ranks(device=torch.device(device))
    with tempfile.TemporaryDirectory() as folder:
        session, progress = open_session(Run(Path(folder)), prepared, start, settings, place)
        steps = session.steps(progress)
        next(steps)
        began = now(device)
        count = sum(1 for _ in steps)
        ended = now(device)
    assert count == session.total - 1
    return pace(prepared, settings, began, ended)


def theirs(
    model: Path, prepared: Prepared, settings: FineTuneSettings, device: str, *, grouped: bool = False
) -> "Pace":
    """The same of transformers' Trainer."""
    from transformers import AutoTokenizer, DataCollatorForTokenClassification, DataCollatorWithPadding, Trainer

    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [
        {"input_ids": list(w.ids), "attention_mask": [1] * len(w.ids), "token_type_ids": list(w.segments)}
        | {"labels": list(w.target) if prepared.task.name == "tag" else w.target}
        for w in prepared.train.flat
    ]
    kind = DataCollatorForTokenClassification if prepared.task.name == "tag" else DataCollatorWithPadding
    peer = load_peer(model, prepared, settings.learning.seed, torch.device(device))
    clock = stopwatch(device)
    with tempfile.TemporaryDirectory() as folder:
        arguments = trainer_arguments(folder, settings, device, grouped)
        Trainer(peer.model, arguments, kind(tokenizer), train_dataset=rows, callbacks=[clock]).train()
    return pace(prepared, settings, clock.begin, clock.end)


def trainer_arguments(folder: str, settings: FineTuneSettings, device: str, grouped: bool) -> Any:
    from transformers import TrainingArguments

    learning = settings.learning
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    # Its name changed within transformers 5.
    together = {"train_sampling_strategy": "group_by_length"} if "train_sampling_strategy" in names else {}
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=learning.batch,
        num_train_epochs=learning.epochs,
        learning_rate=learning.learning_rate,
        warmup_steps=learning.warmup,  # under 1: a share
        weight_decay=learning.weight_decay,
        max_grad_norm=learning.clip,
        optim="adamw_torch_fused",
        bf16=device == "cuda",
        use_cpu=device == "cpu",
        dataloader_num_workers=0,
        dataloader_pin_memory=device == "cuda",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=learning.seed,
        **((together or {"group_by_length": True}) if grouped else {}),
    )


def stopwatch(device: str) -> Any:
    """A Trainer callback that looks at the clock after the first step and at the end."""
    from transformers import TrainerCallback

    class Stopwatch(TrainerCallback):
        begin: tuple[float, float] | None = None
        end: tuple[float, float] | None = None

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.begin = self.begin or now(device)

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.end = now(device)

    return Stopwatch()


def now(device: str) -> tuple[float, float]:
    """By the clock, and by what this process has computed on all cores."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


@dataclasses.dataclass(frozen=True)
class Pace:
    """Examples by second on the clock, and by second on the cores."""

    clock: float
    cores: float


def pace(
    prepared: Prepared, settings: FineTuneSettings, began: tuple[float, float], ended: tuple[float, float]
) -> Pace:
    examples = len(prepared.train.examples) * settings.learning.epochs - settings.learning.batch
    clock, cores = (examples / (end - begin) for begin, end in zip(began, ended, strict=True))
    return Pace(round(clock, 1), round(cores, 1))


def measure(key: str, options: argparse.Namespace) -> dict[str, Any]:
    """Interleaved rounds of all contenders on one task."""
    settings = settings_of(find_task(key), 0, f"epochs={options.epochs}")
    plain = settings_of(find_task(key), 0, f"epochs={options.epochs}", "replay=false")
    begin = load_checkpoint(options.model)
    prepared = prepare_task(find_task(key), options.data, begin, settings, options.rows)
    everything = {
        "bertkit": lambda: ours(begin, prepared, settings, options.device),
        "bertkit without replay": lambda: ours(begin, prepared, plain, options.device),
        "Trainer": lambda: theirs(options.model, prepared, settings, options.device),
        "Trainer by length": lambda: theirs(options.model, prepared, settings, options.device, grouped=True),
    }
    if options.device == "cpu":  # nothing is replayed there
        del everything["bertkit without replay"]
    paces: dict[str, list[Pace]] = {name: [] for name in everything}
    loads = []
    for _ in range(options.rounds):
        loads.append(round(os.getloadavg()[0], 2))
        for name, contender in everything.items():
            paces[name].append(contender())
            print(f"{key:10} {name:24} {paces[name][-1].clock:10,.1f} examples/s", flush=True)
    found = {"task": key, "rows": len(prepared.train.examples), "epochs": options.epochs, "batch": 32}
    found |= {"load_before_rounds": loads, "by_clock": compared(paces, "clock")}
    return found | ({"by_cores": compared(paces, "cores")} if options.device == "cpu" else {})


def compared(paces: dict[str, list[Pace]], by: str) -> dict[str, Any]:
    """Every round, medians, and ours over the better of Trainer's."""
    rates = {name: [getattr(each, by) for each in own] for name, own in paces.items()}
    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    best = max(medians["Trainer"], medians["Trainer by length"])
    ratios = {"ratio": round(medians["bertkit"] / best, 2)}
    ratios |= {"ratio_to_default": round(medians["bertkit"] / medians["Trainer"], 2)}
    return {"examples_per_second": rates, "medians": medians} | ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=list(TASKS))
    parser.add_argument("--rows", type=int, help="of each file")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if importlib.util.find_spec("accelerate") is None:
        raise RequestError("transformers' Trainer needs the package 'accelerate', which is not installed here")
    if options.device == "cpu":
        torch.set_num_threads(options.threads)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else f"{platform.machine()}, CPU"
    content: dict[str, Any] = {"machine": machine, "torch": torch.__version__, "threads": torch.get_num_threads()}
    content |= {"cores": os.cpu_count(), "tasks": []}
    for key in options.tasks:
        content["tasks"].append(measure(key, options))
        ratios = {
            by: content["tasks"][-1][by]["ratio"] for by in ("by_clock", "by_cores") if by in content["tasks"][-1]
        }
        print(f"{key}: times Trainer {ratios}", flush=True)
        with whole_file(options.out) as draft:
            draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
