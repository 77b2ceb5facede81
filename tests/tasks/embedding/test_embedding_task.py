import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from castling import set_blend
from castling.conversion.converted import converted_attentions
from castling.measure.metric import as_values
from castling.tasks.batches import Shard
from castling.tasks.embedding.data import FolderConfig
from castling.tasks.embedding.task import Embedding, EmbeddingConfig
from castling.tasks.imitation import Imitation
from castling.tasks.networks import ConvertConfig, NetworkConfig
from castling.tasks.task import Moment

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
NAME = "vit_tiny_patch16_224"


@pytest.fixture
def root(tmp_path):
    """Eight pictures to train on and five to evaluate on, one of which cannot be read."""
    noise = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 5)):
        (tmp_path / "pictures" / split).mkdir(parents=True)
        for number in range(count):
            pixels = noise.integers(0, 256, (40, 40, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / split / f"{number}.png")
    (tmp_path / "pictures/val/2.png").write_text("no picture")
    return tmp_path / "pictures"


@pytest.fixture
def host(tmp_path):
    """A network of seven outputs, whose weights are in host.safetensors."""
    torch.manual_seed(1)
    network = timm.create_model(NAME, num_classes=7, **TINY).eval()
    torch.nn.init.normal_(network.head.weight)
    save_file(network.state_dict(), tmp_path / "host.safetensors")
    return network


@pytest.fixture
def config(root, host, tmp_path):
    weights = str(tmp_path / "host.safetensors")
    model = NetworkConfig(NAME, options=TINY, weights=weights, convert=ConvertConfig(calibrate=1))
    return EmbeddingConfig(model, FolderConfig(image_size=32, root=str(root)))


@pytest.fixture
def task(config):
    return Embedding(config)


def evaluate(task, network, *loaders):
    """Metrics by one meter for each loader, gathered and merged."""
    meters = []
    for loader in loaders:
        meters.append(task.meter())
        for batch in loader:
            meters[-1].update(task.forward(network, batch), batch)
    meters = [pickle.loads(pickle.dumps(meter)) for meter in meters]
    for meter in meters[1:]:
        meters[0].merge(meter)
    return as_values(meters[0].result())


def test_network_that_is_not_converted_has_nothing_to_learn():
    with pytest.raises(ValueError, match=r"only a converted network has something to learn: set model\.convert"):
        EmbeddingConfig(NetworkConfig(NAME))


def test_network_starts_as_its_original(task, host):
    network = task.build_network(training=True).eval()
    images = torch.randn(2, 3, 32, 32)
    for one in (network, task.original):
        torch.testing.assert_close(one(images), host(images))
    assert len(converted_attentions(network)) == 2
    assert not any(parameter.requires_grad for parameter in task.original.parameters())
    assert network.blocks[0].attn.head_scale is not None  # it was calibrated


def test_losses_are_none_for_the_original_and_castling_attention_has_to_learn(task):
    network = task.build_network(training=True).eval()
    batch = next(iter(task.loader("train", batch_size=4, seed=0)))
    total, parts = task.losses(network, batch)
    assert (float(total.detach()) < 1e-9, parts) == (True, {})
    set_blend(network, 1.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    found = []
    for _ in range(30):
        loss = task.losses(network, batch).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert found[0] > 1e-3
    assert found[-1] < 0.5 * found[0]
    assert all(parameter.grad is None for parameter in task.original.parameters())


@pytest.mark.parametrize("what", ["attention", "features"])
def test_original_can_be_imitated_layer_by_layer(task, what):
    network = task.build_network(training=True).eval()
    [batch] = task.loader("train", batch_size=8)
    imitation = Imitation(task, what)
    assert float(imitation(network, batch).total.detach()) < 1e-9
    set_blend(network, 1.0)
    assert float(imitation(network, batch).total.detach()) > 1e-5


@pytest.mark.parametrize("width", [0, 7])
def test_facts_keep_the_width_of_the_head_in_the_weights(task, host, tmp_path, width):
    host.reset_classifier(width)
    save_file(host.state_dict(), tmp_path / "host.safetensors")
    assert json.loads(json.dumps(task.facts)) == {"num_outputs": width}
    assert task.build_network(training=True)(torch.zeros(1, 3, 32, 32)).shape == (1, width or 32)


def test_rebuilt_network_needs_neither_pictures_nor_starting_weights(task, config):
    started = task.build_network(training=True)
    gone = EmbeddingConfig(
        replace(config.model, weights="/nowhere/gone.safetensors"), FolderConfig(image_size=32, root="/nowhere")
    )
    again = Embedding(gone, {"num_outputs": 7})
    network = again.build_network()
    network.load_state_dict(started.state_dict())
    assert again.original is None
    assert again.deployment().example.shape == (1, 3, 32, 32)


def test_the_original_is_followed_at_several_sizes(config):
    task = Embedding(replace(config, data=replace(config.data, sizes=(32, 48))))
    network = task.build_network(training=True).eval()
    batch = next(iter(task.loader("train", batch_size=4, seed=0)))
    seen = [task.at_moment(batch, Moment(step, 8)) for step in range(8)]
    assert {moment["image"].shape[-1] for moment in seen} == {32, 48}
    assert all(float(task.losses(network, moment).total.detach()) < 1e-9 for moment in seen)


def test_loader_varies_pictures_in_training_alone(task):
    [plain] = task.loader("train", batch_size=8)
    [varied] = task.loader("train", batch_size=8, seed=0)
    assert plain["index"].tolist() == list(range(8))
    assert sorted(varied["index"].tolist()) == list(range(8)) != varied["index"].tolist()
    assert not torch.allclose(varied["image"], plain["image"][varied["index"]], atol=0.1)
    assert set(plain) == set(varied) == {"image", "index"}


def test_loader_splits_batches_over_processes_and_parts(task):
    [whole] = task.loader("train", batch_size=8, seed=0)
    loaders = [task.loader("train", 8, seed=0, shard=Shard(rank, 2), parts=2) for rank in (0, 1)]
    parts = [batch["image"] for loader in loaders for batch in loader]
    assert [len(part) for part in parts] == [2, 2, 2, 2]
    assert torch.equal(torch.cat(parts), whole["image"])


def test_evaluation_leaves_out_what_cannot_be_read(task):
    loader, unreadable = task.loader("val", batch_size=2), []
    loader.on_unreadable = unreadable.extend
    assert [batch["index"].tolist() for batch in loader] == [[0, 1], [3], [4]]
    assert [name for name, _ in unreadable] == ["val/2.png"]


def test_original_has_no_error_and_two_processes_add_up(task):
    network = task.build_network(training=True).eval()
    assert evaluate(task, network, task.loader("val", 4)) == pytest.approx({"error": 0, "cosine": 1}, abs=1e-6)
    set_blend(network, 1.0)
    whole = evaluate(task, network, task.loader("val", 4))
    assert whole["error"] > 1e-3
    shards = [task.loader("val", 4, shard=Shard(rank, 2)) for rank in (0, 1)]
    assert evaluate(task, network, *shards) == pytest.approx(whole, rel=1e-4)


def test_run_that_is_opened_again_is_measured_by_its_original(task, config):
    network = task.build_network(training=True).eval()
    again = Embedding(config, task.facts)
    rebuilt = again.build_network()
    rebuilt.load_state_dict(network.state_dict())
    for one in (network, rebuilt):
        set_blend(one.eval(), 1.0)
    wanted = evaluate(task, network, task.loader("val", 4))
    assert evaluate(again, rebuilt, again.loader("val", 4)) == pytest.approx(wanted, rel=1e-4)


def test_agreement_is_the_cosine_from_zero_on(task):
    outputs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [2.0, 2.0]])
    others = torch.tensor([[5.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [1.0, 0.0]])
    assert task.agreement(outputs, others, {}).tolist() == pytest.approx([1.0, 0.0, 0.0, 0.5**0.5])


def test_predictor_gives_the_vector_of_each_picture(task, root):
    network = task.build_network(training=True).eval()
    found = task.predictor(network)(root / "val")
    assert [one.error is None for one in found] == [True, True, False, True, True]
    [batch] = task.loader("val", batch_size=5)
    readable = torch.tensor([one.vector for one in found if one.error is None])
    torch.testing.assert_close(readable, network(batch["image"]), rtol=1e-4, atol=1e-4)


def test_deployment_says_how_pictures_are_prepared(task, config):
    found = task.deployment()
    assert found.example.shape == (1, 3, 32, 32)
    assert (found.preprocessing, found.outputs, found.facts) == (config.data.preprocessing(), None, {})


def test_network_at_another_input_size_is_compared_with_its_original_there(config):
    model = replace(config.model, input_size=64)
    task = Embedding(EmbeddingConfig(model, replace(config.data, image_size=64)))
    network = task.build_network(training=True).eval()
    batch = next(iter(task.loader("train", batch_size=4)))
    assert batch["image"].shape == (4, 3, 64, 64)
    assert float(task.losses(network, batch).total.detach()) < 1e-9
    Embedding(task.config, task.facts).build_network().load_state_dict(network.state_dict())


def test_network_of_transformers_is_followed_too(root, tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    host = transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=8)).eval()
    host.save_pretrained(tmp_path / "vit")
    model = NetworkConfig(str(tmp_path / "vit"), convert=ConvertConfig(calibrate=1))
    task = Embedding(EmbeddingConfig(model, FolderConfig(image_size=32, root=str(root))))
    network = task.build_network(training=True).eval()
    [batch] = task.loader("train", batch_size=8)
    torch.testing.assert_close(network(batch["image"]), host(batch["image"]).pooler_output)
    assert float(task.losses(network, batch).total.detach()) < 1e-9
    assert task.facts["num_outputs"] == 0
    assert task.facts["transformers"]["model_type"] == "vit"
