"""A pre-training run: from a recipe and shards to a model folder; it can be killed and resumed at any time."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.files import claimed, whole_file
from bertkit.model.model import hide_masks
from bertkit.pretraining.checks import (
    SETTINGS_FILE,
    check_disk,
    check_folder,
    fitted,
    read_fingerprints,
    refuse_other_vocabulary,
    start_fingerprints,
)
from bertkit.pretraining.examples.batches import ExampleSource
from bertkit.pretraining.learner import build_learner, extended, load_start, parameter_bytes
from bertkit.pretraining.objectives.targets import PretrainingModule
from bertkit.pretraining.planning.gauge import Gauge
from bertkit.pretraining.planning.memory import check_host_memory
from bertkit.pretraining.recipe import Recipe, recipe_toml, with_absolute_paths
from bertkit.pretraining.session import LOSS_PARAMETERS_FILE, PretrainingSession
from bertkit.pretraining.stages import Stage, Stages, largest, read_stages
from bertkit.progress import ShowProgress, silent
from bertkit.text.shards.reader import ShardSet, open_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.distributed import Ranks, process_group, shard, stop_requests
from bertkit.train.loop import StepReport
from bertkit.train.records import write_code_version
from bertkit.train.runs import Progress, Run, read_progress, read_tensor_file


def pretrain(
    recipe: Recipe,
    out: Path | str,
    *,
    start: Path | str | None = None,
    resume: bool = False,
    device: str | None = None,
    show: ShowProgress = silent,
) -> StepReport | None:
    """Train as the recipe says and write the model to `out/model`; return the report of the last step, if any.

    SIGTERM and Ctrl-C save a checkpoint and stop; then there is no `out/model` yet.
    """
    out, shards = Path(out), open_shards(recipe.shards)
    start_model = extended(load_start(Path(start), recipe), shards) if start else None
    recipe = fitted(recipe, shards, start_model)
    fingerprints = start_fingerprints(recipe, shards, start_model)
    check_folder(out, recipe, fingerprints, resume=resume)
    with process_group(device) as ranks, stop_requests(ranks) as stop, claimed(out) if ranks.first else nullcontext():
        check_folder(out, recipe, fingerprints, resume=resume)  # again, now under the lock
        learner = build_learner(recipe, start_model)
        for model in learner.models.values():
            hide_masks(model, shards.tokenizer.mask_id)
        check_disk(out, parameter_bytes(learner), recipe.train.keep)
        session, progress = _open(recipe, Run(out), learner, shards, ranks, fingerprints, resume)
        with (show if ranks.first else silent)("pre-training", 1.0) as meter:
            return session.train(progress, meter, stop)


def _open(
    recipe: Recipe,
    run: Run,
    learner: PretrainingModule,
    shards: ShardSet,
    ranks: Ranks,
    fingerprints: dict[str, str],
    resume: bool,
) -> tuple[PretrainingSession, Progress]:
    """The session and the progress of the run; nothing is written before all checks have passed."""
    planned, heldout = _checked_stages(recipe, learner, ranks), _heldout(recipe, shards)
    latest = run.latest() if resume else None
    with _naming_checkpoint(latest):
        tokenizer = _load_models(latest, learner) if latest else None
        progress = read_progress(latest)
    if latest:
        refuse_other_vocabulary(latest, tokenizer, shards)
        fingerprints = {name: text for name, text in fingerprints.items() if name != "start"}  # --from may be missing
    learner.to(ranks.device).train()
    if recipe.train.sharding == "fsdp" and ranks.size > 1:
        shard(learner, [layer for model in learner.models.values() for layer in model.encoder.layers], ranks)
    stages, gauge = Stages(shards, planned, progress.begun), Gauge.of(recipe, ranks, progress)
    session = PretrainingSession(
        run=run, ranks=ranks, recipe=recipe, module=learner, stages=stages, heldout=heldout, gauge=gauge
    )
    with _naming_checkpoint(latest):
        if latest:
            session.restore(latest)
    if ranks.device.type == "cuda":
        session.check_memory()
    ranks.wait()  # until all ranks have read the folder
    if ranks.first:
        _prepare_folder(run, recipe, progress, fingerprints)
    return session, progress


def _checked_stages(recipe: Recipe, learner: PretrainingModule, ranks: Ranks) -> Sequence[Stage]:
    """The stages of a run; stages that do not divide over the ranks or do not fit into memory are refused."""
    stages = read_stages(recipe.train.stages, recipe.train.batch, recipe.data)
    for stage in stages:
        ranks.share(range(stage.batch // stage.data.block))
    if ranks.device.type == "cpu":
        check_host_memory(recipe, largest(stages), parameter_bytes(learner))
    return stages


def _prepare_folder(run: Run, recipe: Recipe, progress: Progress, fingerprints: dict[str, str]) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)  # another process may have removed it after a failure
    run.remove_partial()
    text = recipe_toml(with_absolute_paths(recipe), fingerprints | read_fingerprints(run.folder / SETTINGS_FILE))
    with whole_file(run.folder / SETTINGS_FILE) as draft:
        draft.write_text(text, encoding="utf-8")
    run.truncate_metrics(progress.step)
    write_code_version(run.folder)


def _heldout(recipe: Recipe, shards: ShardSet) -> ExampleSource | None:
    """The held-out examples, with the same masks in every evaluation."""
    if recipe.heldout is None:
        return None
    held = open_shards(recipe.heldout)
    held.require_tokenizer(shards.tokenizer)
    return ExampleSource(held, replace(recipe.data, static=True, seed=1))


def _load_models(checkpoint: Path, learner: PretrainingModule) -> Tokenizer | None:
    """Copy the weights of a checkpoint into the models, so that shared tensors stay shared; return the tokenizer."""
    tokenizer = None
    for name, model in learner.models.items():
        saved = load_checkpoint(checkpoint / name, heads={head: None for head in model.heads})
        model.load_state_dict(saved.model.state_dict())
        tokenizer = saved.tokenizer
    learner.load_own_tensors(read_tensor_file(checkpoint / LOSS_PARAMETERS_FILE) if learner.own_tensors() else {})
    return tokenizer


@contextmanager
def _naming_checkpoint(checkpoint: Path | None) -> Iterator[None]:
    """Turn errors of reading a checkpoint into one that names the checkpoint."""
    try:
        yield
    except (RequestError, RuntimeError) as error:  # torch raises RuntimeError for wrong shapes
        if checkpoint is None:
            raise
        first = str(error).strip().splitlines()[0]
        raise RequestError(
            f"{checkpoint} is damaged ({first}); remove that folder to continue from the checkpoint before it"
        ) from error
