"""Checkpoints are read and written under the published names; invalid ones are refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from services.worker.model.families import parse_config, read_config
from services.worker.model.weights import load, save
from tests.support.golden import COPY, GOLDEN, SETS

ONE = "llada/seed1"


def copy_of(name: str, directory: Path) -> Path:
    for file in ("config.json", "model.safetensors"):
        shutil.copy(COPY / name / file, directory / file)
    return directory


@pytest.mark.parametrize("name", SETS)
def test_saving_restores_the_published_parameters(name: str, tmp_path: Path) -> None:
    save(load(GOLDEN / name, torch.float32, "cpu"), tmp_path, torch.float32)
    saved, published = (load_file(tmp_path / "model.safetensors"), load_file(GOLDEN / name / "model.safetensors"))
    assert saved.keys() == published.keys()
    assert all(torch.equal(saved[key], published[key]) for key in published)


def test_sharded_files_load_as_a_single_file_does(tmp_path: Path) -> None:
    source = COPY / ONE
    tensors = load_file(copy_of(ONE, tmp_path) / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for shard, keys in shards.items():
        save_file({key: tensors[key] for key in keys}, tmp_path / shard)
    weight_map = {key: shard for shard, keys in shards.items() for key in keys}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sharded, whole = load(tmp_path, torch.float32, "cpu"), load(source, torch.float32, "cpu")
    assert all(torch.equal(a, b) for a, b in zip(sharded.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda t: t.pop("model.transformer.ln_f.weight"), "lacks 1 parameters.*ln_f"),
        (lambda t: t.update(extra=torch.zeros(1)), "holds extra"),
        (lambda t: t.update({"model.transformer.ln_f.weight": torch.zeros(3)}), r"ln_f.weight is \[3\]"),
    ],
)
def test_invalid_parameters_are_named_in_one_line(change, complaint: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = copy_of(ONE, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(ValueError, match=complaint) as caught:
        load(tmp_path, torch.float32, "cpu")
    assert "\n" not in str(caught.value)


def test_truncated_weights_are_rejected(tmp_path: Path) -> None:
    path = copy_of(ONE, tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot read the weights"):
        load(tmp_path, torch.float32, "cpu")


def test_the_published_configurations_are_read() -> None:
    real = json.loads((COPY / "real_configs.json").read_text())
    llada = parse_config(real["llada-8b-instruct"]["config"])
    dream = parse_config(real["dream-7b"]["config"])
    assert (llada.family, llada.head_dim, llada.num_kv_heads) == ("llada", 128, 32)
    assert (dream.family, dream.head_dim, dream.num_kv_heads) == ("dream", 128, 4)
    assert (llada.shifted_logits, dream.shifted_logits) == (False, True)
    assert (llada.rope_base, llada.norm_eps, llada.mask_token_id, llada.max_length) == (5e5, 1e-5, 126336, 4096)
    assert (dream.rope_base, dream.norm_eps, dream.mask_token_id, dream.max_length) == (1e6, 1e-6, 151666, 2048)


@pytest.mark.parametrize("architecture", ["Fast_dLLM_QwenForCausalLM", "LLaDAMoEModelLM"])
def test_other_architectures_are_refused_by_name(architecture: str) -> None:
    with pytest.raises(ValueError, match=f"architecture: {architecture}; supported: LLaDAModelLM, DreamModel, SDAR"):
        parse_config({"architectures": [architecture]})


def test_the_rope_parameters_of_transformers_5_are_read() -> None:
    raw = json.loads((COPY / "real_configs.json").read_text())["dream-7b"]["config"]
    new = {key: value for key, value in raw.items() if key != "rope_theta"}
    new["rope_parameters"] = {"rope_type": "default", "rope_theta": raw["rope_theta"]}
    assert parse_config(new) == parse_config(raw)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"architectures": None}, "architecture: none; supported"),
        ({"block_size": 32}, "block_size is 32: a block-causal model"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is 'yarn'"),
        ({"layer_norm_type": "default"}, "only 'rms' is implemented"),
        ({"mask_token_id": None}, "config.json"),
        ({"n_layers": -2}, "at least 1"),
        ({"n_heads": 0}, "config.json"),
        ({"mask_token_id": 384}, "outside the 384 embedding rows"),
    ],
)
def test_unusable_configurations_are_rejected(change: dict[str, object], complaint: str, tmp_path: Path) -> None:
    raw = json.loads((COPY / ONE / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | change))
    with pytest.raises(ValueError, match=complaint):
        read_config(tmp_path)


def test_a_directory_without_a_model_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read config\.json"):
        read_config(tmp_path)


def test_loading_does_not_import_the_compiler_of_torch() -> None:
    program = (
        "import sys, torch; from pathlib import Path; from services.worker.model.weights import load;"
        f"load(Path({str(COPY / ONE)!r}), torch.float32, 'cpu');"
        "print(*{'sympy', 'torch._dynamo'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
