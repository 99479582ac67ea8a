"""Write the folders of an 8B-shaped Llama and its EAGLE-3 head: configuration and tokenizer, no weights.

::

    python benchmarks/shaped_model.py TOKENIZER_FOLDER TARGET_FOLDER DRAFTER_FOLDER

For ``search_spaces/h200_llama8b_shaped.yaml``: SGLang fills the weights itself (``--load-format dummy``), so step times
are those of the shape and the text is meaningless. TOKENIZER_FOLDER: any model's folder with at most 49,152 tokens.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

TARGET = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}
HEAD = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 49152}
TOKENIZER = ("tokenizer", "special", "vocab", "merges", "chat")


def main() -> None:
    tokenizer, target, drafter = map(Path, sys.argv[1:4])
    for folder, config in ((target, TARGET), (drafter, TARGET | HEAD)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in tokenizer.iterdir():
        if file.name.startswith(TOKENIZER) or file.suffix == ".jinja":
            shutil.copy(file, target / file.name)


if __name__ == "__main__":
    main()
