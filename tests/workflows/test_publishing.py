"""A published folder in transformers and timm, in fresh processes and in this one: the same outputs to the last bit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from run_folders import certificate

from castling.conversion import castle
from castling.training import RunFolder, load_recipe, parse_recipe
from castling.training.saved import open_model, write_castled
from castling.workflows import publishing
from castling.workflows.publishing import publish, upload

transformers = pytest.importorskip("transformers")

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
RECIPES = {
    "detection": ("facemask/castling_s_320", ["data.image_size=64", "data.sizes=[]"]),
    "segmentation": ("camvid/castling_vit_tiny", ["model.options.depth=4", "data.image_size=64"]),
    "pretraining": ("pretraining/digits", ["model.options.depth=1"]),
}
FACTS = {
    "detection": {"labels": ["mask", "none"], "category_ids": [3, 7]},
    "segmentation": {"labels": ["sky", "road"], "palette": None},
    "pretraining": {},
}


def picture(width=80, height=60):
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (height, width, 3), np.uint8))


def untrained_run(folder, kind):
    """A castled folder of a task, with the weights that it begins with."""
    name, settings = RECIPES[kind]
    recipe = load_recipe(name, settings)
    task = recipe.make_task(FACTS[kind])
    network = castle(task.build_network(), inplace=True)
    RunFolder(folder, writes=True).create(recipe, task.facts, {"attention": "castling"})
    write_castled(folder, network, certificate())
    return folder / "castled"


@pytest.fixture(scope="module")
def published(digits_run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "digits"
    found = publish(digits_run, folder)
    configs = ["config.json", "model.safetensors", "preprocessor_config.json"]
    files = [file for file in found.files if not file.startswith("figures/")]
    assert files == ["README.md", "certificate.json", *configs]
    assert "figures/occupancy.png" in found.files
    assert found.timm
    return folder


FRESH = """
import sys, torch, castling
assert "transformers" not in sys.modules
torch.set_grad_enabled(False)
images = torch.load(sys.argv[2], weights_only=True)
if sys.argv[1] == "timm":
    import timm
    model = timm.create_model("local-dir:" + sys.argv[3], pretrained=True).eval()
    found = model(images)
else:
    from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification
    assert AutoConfig.from_pretrained(sys.argv[3]).model_type == "castling"
    assert type(AutoImageProcessor.from_pretrained(sys.argv[3])).__name__ == "CastlingImageProcessor"
    found = AutoModelForImageClassification.from_pretrained(sys.argv[3]).eval()(images).logits
torch.save(found.detach(), sys.argv[4])
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_fresh_process_gives_the_same_bits(library, published, digits_run, tmp_path):
    images = torch.randn(3, 1, 32, 32)
    torch.save(images, tmp_path / "images.pt")
    words = [sys.executable, "-c", FRESH, library, tmp_path / "images.pt", published, tmp_path / "found.pt"]
    subprocess.run(list(map(str, words)), check=True, timeout=300)
    saved = open_model(digits_run / "castled")
    with torch.no_grad():
        assert torch.equal(torch.load(tmp_path / "found.pt", weights_only=True), saved.network(images))


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", ["import transformers", "from transformers import AutoModelForObjectDetection", "pass"]
)
def test_whatever_is_imported_first_knows_ours(first, published):
    script = f"""
{first}
import castling, sys
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification
for auto in (AutoConfig, AutoImageProcessor):
    print(type(auto.from_pretrained(sys.argv[1])).__name__)
print(type(AutoModelForImageClassification.from_pretrained(sys.argv[1])).__name__)
"""
    words = [sys.executable, "-c", script, str(published)]
    found = subprocess.run(words, check=True, timeout=300, capture_output=True, text=True).stdout.split()
    assert found == ["CastlingConfig", "CastlingImageProcessor", "CastlingForImageClassification"]


def test_a_pipeline_says_what_the_run_says(published, digits_run):
    says = transformers.pipeline("image-classification", model=str(published))
    found, (wanted,) = says(picture()), open_model(digits_run / "castled").predict(picture(), top=5)
    assert [one["label"] for one in found] == list(wanted.labels)
    assert [one["score"] for one in found] == pytest.approx(list(wanted.probabilities), rel=1e-5)


def test_what_transformers_saved_again_is_the_same(published, tmp_path):
    auto = transformers.AutoModelForImageClassification
    first = auto.from_pretrained(published)
    first.save_pretrained(tmp_path / "again")
    again, images = auto.from_pretrained(tmp_path / "again"), torch.randn(2, 1, 32, 32)
    with torch.no_grad():
        assert torch.equal(first.eval()(images).logits, again.eval()(images).logits)
    assert again.config.id2label == dict(enumerate(map(str, range(10))))


@pytest.mark.slow
def test_the_trainer_trains_a_few_steps(published, tmp_path):
    model = transformers.AutoModelForImageClassification.from_pretrained(published)
    processor = transformers.AutoImageProcessor.from_pretrained(published)
    images = processor([picture()] * 8)["pixel_values"]
    data = [{"pixel_values": image, "labels": 3} for image in images]
    settings = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=4,
        learning_rate=1e-2,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
    )
    trainer = transformers.Trainer(model, settings, train_dataset=data)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 4
    assert losses[-1] < losses[0]


def test_detectors_and_their_pipeline(tmp_path):
    castled = untrained_run(tmp_path / "run", "detection")
    found = publish(castled, tmp_path / "published")
    assert not found.timm
    saved, images = open_model(castled), torch.rand(2, 3, 64, 64)
    model = transformers.AutoModelForObjectDetection.from_pretrained(found.folder).eval()
    with torch.no_grad():
        ours, theirs = saved.network(images), model(images)
    assert torch.equal(ours["scores"], theirs.scores)
    assert torch.equal(ours["boxes"], theirs.boxes)
    says = transformers.pipeline("object-detection", model=str(found.folder))
    (wanted,) = saved.predict(picture(), score=0.001)
    seen = says(picture(), threshold=0.001)
    assert len(wanted.objects) == len(seen) > 0
    assert [one["label"] for one in seen] == [one.label for one in wanted.objects]
    assert seen[0]["score"] == pytest.approx(wanted.objects[0].score)
    assert seen[0]["box"]["xmax"] == int(wanted.objects[0].box[2])
    labels = [
        {"class_labels": torch.tensor([1]), "boxes": torch.tensor([[0.5, 0.5, 0.4, 0.2]])},
        {"class_labels": torch.zeros(0, dtype=torch.long), "boxes": torch.zeros(0, 4)},
    ]
    with pytest.raises(ValueError, match="a loss in training only"):
        model(images, labels=labels)
    loss = model.train()(images, labels=labels).loss
    boxes = torch.tensor([[[19.2, 25.6, 44.8, 38.4]], [[0.0] * 4]])
    batch = {"image": images, "boxes": boxes, "labels": torch.tensor([[1], [-1]])}
    with torch.no_grad():
        wanted_loss = saved.task.losses(saved.network.train(), batch).total
    assert float(loss) == pytest.approx(float(wanted_loss), rel=1e-5)


def test_segmenters_and_their_pipeline(tmp_path):
    castled = untrained_run(tmp_path / "run", "segmentation")
    found = publish(castled, tmp_path / "published")
    saved, images = open_model(castled), torch.rand(1, 3, 64, 96)
    model = transformers.AutoModelForSemanticSegmentation.from_pretrained(found.folder).eval()
    with torch.no_grad():
        assert torch.equal(saved.network(images), model(images).logits)
    (wanted,) = saved.predict(picture())
    masks = {
        one["label"]: np.asarray(one["mask"]) > 0
        for one in transformers.pipeline("image-segmentation", model=str(found.folder))(picture())
    }
    for place, label in enumerate(["sky", "road"]):
        np.testing.assert_array_equal(masks.get(label, np.zeros((60, 80), bool)), wanted.places == place)
    loss = model.train()(images, labels=torch.zeros(1, 64, 96, dtype=torch.long)).loss
    loss.backward()
    assert torch.isfinite(loss)


def test_the_card_says_what_it_is(published):
    card = (published / "README.md").read_text()
    head = card.split("---")[1]
    assert "license: apache-2.0" in head
    assert "pipeline_tag: image-classification" in head
    for words in ("castled: no softmax attention", "Verdict: free", "local-dir:digits", "task: classification"):
        assert words in card
    for file in re.findall(r"\]\((figures/[^)]+)\)", card):
        assert (published / file).read_bytes().startswith(b"\x89PNG")
    assert str(Path.cwd()) not in card + (published / "config.json").read_text()


def test_a_folder_is_replaced_whole_and_others_are_left_alone(digits_run, published, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(ValueError, match="was not published by this command"):
        publish(digits_run, tmp_path / "mine")
    (tmp_path / "mine" / "config.json").write_text('{"model_type": "vit"}')  # as any network of transformers has one
    with pytest.raises(ValueError, match="was not published by this command"):
        publish(digits_run, tmp_path / "mine")
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["config.json", "thesis.txt"]
    publish(digits_run, tmp_path / "digits")
    publish(digits_run, tmp_path / "digits", licence="mit")
    assert "license: mit" in (tmp_path / "digits" / "README.md").read_text()

    def full(path, data):
        raise OSError("no space left")

    monkeypatch.setattr(publishing, "write_file", full)
    with pytest.raises(OSError, match="no space"):
        publish(digits_run, tmp_path / "digits", licence="other")
    assert "license: mit" in (tmp_path / "digits" / "README.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digits", "mine"]


def test_what_cannot_be_published_is_said(digits_run, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"classification, detection, segmentation; .* is of the task 'pretraining'"):
        publish(untrained_run(tmp_path / "run", "pretraining"), tmp_path / "out")
    with pytest.raises(ValueError, match="is not castled; run first"):
        publish(digits_run, tmp_path / "out", checkpoint="last")
    assert not (tmp_path / "out").exists()
    with_branch = publish(digits_run, tmp_path / "out", checkpoint="last", with_branch=True)
    content = json.loads((with_branch.folder / "config.json").read_text())
    assert content["castled"] is False
    assert "attention" not in content["model_args"] or content["model_args"]["attention"].get("aux", True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "nobody"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ValueError, match="no token of Hugging Face"):
        upload(with_branch.folder, "you/digits")


def test_a_folder_of_others_imports_no_code(published, tmp_path):
    content = json.loads((published / "config.json").read_text())
    content["recipe"]["task"] = "antigravity_of_theirs:Task"
    from castling.hub.config import task_of

    with pytest.raises(ValueError, match="import antigravity_of_theirs first"):
        task_of(content["recipe"], content["facts"])
    with pytest.raises(ValueError, match="has no recipe"):
        task_of({}, {})


def test_a_converted_network_is_not_what_timm_would_make(tmp_path):
    recipe = parse_recipe(
        {
            "task": "classification",
            "model": {"name": "vit_tiny_patch16_224", "convert": {"calibrate": 0}, "options": VIT},
            "data": {"source": "digits", "image_size": 32, "channels": 1, "mean": [0.3], "std": [0.4]},
        }
    )
    from castling.training.saved import SavedModel
    from castling.workflows.publishing import timm_entry

    task = recipe.make_task({"labels": ["a", "b"]})
    assert timm_entry(SavedModel(task.build_network(), recipe, task)) == {}
