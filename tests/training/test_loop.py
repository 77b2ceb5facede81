"""What the loop does in a run that nobody disturbs."""

import gc
import json
import multiprocessing

import pytest
import torch

from castling.measure.metric import Metric
from castling.tasks.classification.task import Classification
from castling.tasks.task import Moment
from castling.training import RunFolder, loop, train
from castling.training.checkpoint import checkpoint_folders, load_best, load_checkpoint, load_last
from castling.training.evaluation import Evaluation
from castling.training.recipe import recipe_text


def test_the_run_folder_has_everything(micro, tmp_path):
    summary = train(micro(), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    expected = {"config.yaml", "environment.json", "facts.json", "network.json", "log.jsonl", "checkpoints"}
    assert expected | {"figures", "summary.json"} <= names
    assert RunFolder(tmp_path / "run").facts() == {"labels": [str(number) for number in range(10)]}
    assert RunFolder(tmp_path / "run").network()["attention"] == "castling"
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert RunFolder(tmp_path / "run").recipe() == micro()
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["seed"] == "0"
    assert summary["status"] == "finished"
    assert summary["steps"] == 6


def test_reading_processes_end_with_the_run(micro, tmp_path, monkeypatch):
    # The garbage collector ends a queue before the loader that would say good-bye through it: five seconds a process.
    gc.disable()
    monkeypatch.setattr(gc, "collect", lambda *args: 0)
    before = multiprocessing.active_children()  # those of runs that failed in other tests
    try:
        train(micro("training.workers=1", "training.max_steps=1"), tmp_path / "run")
        assert set(multiprocessing.active_children()) <= set(before)
    finally:
        gc.enable()


def test_occupancy_is_logged_per_layer_and_head_from_step_0(micro, tmp_path):
    train(micro("training.log_every=2"), tmp_path / "run")
    steps = RunFolder(tmp_path / "run").steps()
    assert [record.step for record in steps] == [0, 2, 4]
    assert all(len(record.occupancy["blocks.0.attn"]) == 2 for record in steps)


def test_both_evaluations_each_epoch(micro, tmp_path):
    train(micro(), tmp_path / "run")
    evals = RunFolder(tmp_path / "run").evals()
    assert [record.epoch for record in evals] == [1, 2]
    for record in evals:
        assert [metric.name for metric in record.model] == ["top1", "top5", "loss"]
        assert [metric.name for metric in record.castled] == ["top1", "top5", "loss"]
    assert evals[-1].model == evals[-1].castled  # the schedule has closed the mask
    assert evals[-1].occupancy == {"blocks.0.attn": [0.0, 0.0]}


def test_a_softmax_twin_has_nothing_to_castle(micro, tmp_path):
    summary = train(micro("model.kernel=softmax"), tmp_path / "run")
    assert summary["castled"] is None
    assert RunFolder(tmp_path / "run").steps()[0].threshold is None
    assert RunFolder(tmp_path / "run").network()["attention"] == "softmax"


def test_schedules_reach_the_log(micro, tmp_path):
    rate = "training.learning_rate={kind: exponential, peak: 0.1, warmup_epochs: 1, warmup_from: 0.01, decay: 0.5}"
    train(micro(rate, "training.epochs=3", "training.optimizer.name=sgd"), tmp_path / "run")
    rates = [record.learning_rate for record in RunFolder(tmp_path / "run").steps()]
    assert rates == pytest.approx([0.01, 0.04, 0.07, 0.1, 0.1, 0.1, 0.05, 0.05, 0.05])
    thresholds = [record.threshold for record in RunFolder(tmp_path / "run").steps()]
    assert thresholds == pytest.approx([0.05 + 0.95 * step / 9 for step in range(9)])


@pytest.mark.slow
def test_the_loss_falls(micro, tmp_path):
    plain = "augment={crop_scale: null, flip: 0, color_jitter: 0, auto_augment: null, erasing: 0, mixup: 0, cutmix: 0}"
    rate = "training.learning_rate={kind: constant, peak: 0.01}"
    train(micro(plain, rate, "training.epochs=20", "training.evaluate_every=20"), tmp_path / "run")
    losses = [record.loss for record in RunFolder(tmp_path / "run").steps()]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("precision", ["bf16", "no"])
def test_mixed_precision(micro, tmp_path, precision):
    recipe = micro(f"training.mixed_precision={precision}", "training.max_steps=2")
    summary = train(recipe, tmp_path / "run")
    assert summary["skipped_steps"] == 0
    assert (
        load_last(tmp_path / "run" / "checkpoints").weights["model"]["blocks.0.attn.qkv.weight"].dtype == torch.float32
    )


@pytest.mark.parametrize("name", ["sgd", "adamw", "lamb", "lion"])
def test_optimizers_of_timm_train_and_resume(micro, tmp_path, name):
    recipe = micro(f"training.optimizer.name={name}", "training.max_steps=2", "training.learning_rate.peak=1e-3")
    train(recipe, tmp_path / "run")
    assert load_last(tmp_path / "run" / "checkpoints").step == 2
    whole = micro(f"training.optimizer.name={name}", "training.learning_rate.peak=1e-3", "training.epochs=1")
    (tmp_path / "run" / "config.yaml").write_text(recipe_text(whole))
    assert train(whole, tmp_path / "run", resume=True)["steps"] == 3


def test_accumulation_is_the_whole_batch(micro, tmp_path):
    calm = ("augment.mixup=0", "model.options.drop_rate=0", "training.max_steps=3", "training.threshold=null")
    train(micro(*calm), tmp_path / "whole")
    train(micro(*calm, "training.accumulate=4"), tmp_path / "parts")
    whole, parts = ([record.loss for record in RunFolder(tmp_path / name).steps()] for name in ("whole", "parts"))
    assert whole == pytest.approx(parts, abs=1e-5)


def test_clipping_bounds_the_step(micro, tmp_path):
    options = ("training.optimizer={name: momentum, momentum: 0, weight_decay: 0}", "training.max_steps=1")
    rate = "training.learning_rate={kind: constant, peak: 1.0}"
    train(micro(*options, rate, "training.clip_norm=0.01", "training.ema_decay=null"), tmp_path / "run")
    folders = checkpoint_folders(tmp_path / "run" / "checkpoints")
    first, last = (load_checkpoint(folder).weights["model"] for folder in (folders[0], folders[-1]))
    moved = torch.cat([(last[name] - first[name]).flatten() for name in first]).norm()
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_the_moving_average_is_what_is_evaluated(micro, tmp_path, monkeypatch):
    seen = []
    evaluate = loop.evaluate

    def noting(task, network, *rest, **options):
        seen.append({name: value.clone() for name, value in network.state_dict().items()})
        return evaluate(task, network, *rest, **options)

    monkeypatch.setattr(loop, "evaluate", noting)
    train(micro(), tmp_path / "run")
    last = load_last(tmp_path / "run" / "checkpoints")
    assert all(torch.equal(seen[-1][name], value) for name, value in last.weights["ema"].items())
    assert any(not torch.equal(last.weights["model"][name], value) for name, value in last.weights["ema"].items())


def test_the_last_two_and_the_best_are_kept(micro, tmp_path, monkeypatch):
    scores = iter([0.5, 0.9, 0.4, 0.3, 0.2])
    found = lambda *args, **options: Evaluation([Metric("top1", next(scores))], None, {})  # noqa: E731
    monkeypatch.setattr(loop, "evaluate", found)
    train(micro("training.epochs=5", "model.kernel=softmax"), tmp_path / "run")
    kept = [folder.name for folder in checkpoint_folders(tmp_path / "run" / "checkpoints")]
    assert kept == ["step-000000006", "step-000000012", "step-000000015"]
    assert load_best(tmp_path / "run" / "checkpoints").step == 6


def test_the_best_has_the_least_where_less_is_better(micro, tmp_path, monkeypatch):
    errors = iter([0.5, 0.1, 0.4])
    found = lambda *args, **options: Evaluation([Metric("error", next(errors), "", False)], None, {})  # noqa: E731
    monkeypatch.setattr(loop, "evaluate", found)
    train(micro("training.epochs=3", "model.kernel=softmax"), tmp_path / "run")
    assert load_best(tmp_path / "run" / "checkpoints").step == 6


def test_a_mask_that_cannot_empty_is_reported_before_training(micro, tmp_path, caplog):
    with caplog.at_level("INFO"):
        train(micro("training.threshold=null", "training.max_steps=1"), tmp_path / "run")
    assert "17 keys" in caplog.text
    assert "a threshold of 0.0589" in caplog.text
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert "can never empty" in events[0]["event"]


def test_tensorboard_on_request(micro, tmp_path):
    pytest.importorskip("tensorboard")
    train(micro("training.trackers=[tensorboard]", "training.max_steps=2"), tmp_path / "run")
    assert list((tmp_path / "run").rglob("events.out.tfevents*"))


def test_a_missing_tracker_is_said(micro, tmp_path):
    with pytest.raises(ValueError, match=r"not all of training.trackers=\['comet_ml'\] are installed"):
        train(micro("training.trackers=[comet_ml]"), tmp_path / "run")


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
def test_fp16_needs_a_gpu(micro, tmp_path):
    with pytest.raises(ValueError, match="fp16 needs a GPU"):
        train(micro("training.mixed_precision=fp16"), tmp_path / "run")


def test_pictures_that_the_patches_do_not_fit_are_refused_before_anything_is_written(micro, tmp_path):
    with pytest.raises(ValueError, match="18"):
        train(micro("data.image_size=18"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_size_of_training_pictures_is_tried_before_anything_is_written(micro, tmp_path):
    with pytest.raises(ValueError, match="18"):
        train(micro("data.sizes=[16,18]"), tmp_path / "run")
    options = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2}
    plain = {"name": "vit_tiny_patch16_224", "options": options}
    with pytest.raises(ValueError, match=r"doesn't match model \(16\).*model\.options\.dynamic_img_size=true"):
        train(micro("data.sizes=[16,24]", f"model={json.dumps(plain)}", "training.threshold=null"), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    options["dynamic_img_size"] = True
    train(micro("data.sizes=[16,24]", f"model={json.dumps(plain)}", "training.threshold=null"), tmp_path / "run")


def test_a_batch_larger_than_the_data_is_refused_before_anything_is_written(micro, tmp_path):
    with pytest.raises(ValueError, match="between 1 and the 96 examples; got 500"):
        train(micro("training.batch_size=500"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_task_is_told_the_moment_of_each_batch(micro, tmp_path, monkeypatch):
    moments = []

    def at_moment(self, batch, moment):
        moments.append(moment)
        return {**batch, "image": batch["image"] * 0}

    monkeypatch.setattr(Classification, "at_moment", at_moment)
    train(micro("training.accumulate=2", "training.max_steps=2"), tmp_path / "dark")
    assert moments == [Moment(0, 6), Moment(0, 6), Moment(1, 6), Moment(1, 6)]
    monkeypatch.undo()
    train(micro("training.accumulate=2", "training.max_steps=2"), tmp_path / "light")
    dark, light = (RunFolder(tmp_path / name).steps()[0].loss for name in ("dark", "light"))
    assert dark != light
