"""Make a tiny LoRA adapter for the tiny model. Run it in the vLLM environment: python tiny_lora.py MODEL FOLDER."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

_RANK = 8

if __name__ == "__main__":
    model, folder = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((model / "config.json").read_text())
    size = config["hidden_size"]
    torch.manual_seed(1)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for module in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(_RANK, size, dtype=torch.bfloat16)
            tensors[f"{name}.lora_B.weight"] = torch.randn(size, _RANK, dtype=torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps(
            {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "base_model_name_or_path": str(model),
                "r": _RANK,
                "lora_alpha": 16,
                "lora_dropout": 0.0,
                "bias": "none",
                "target_modules": ["q_proj", "v_proj"],
            }
        )
    )
