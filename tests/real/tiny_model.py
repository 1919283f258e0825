"""Make a tiny random Llama with a byte-level tokenizer, in seconds and offline. Run it in the vLLM environment.

python tiny_model.py FOLDER
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte: the number of tokens of a prompt is known without asking."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", "<pad>", *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    made.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
    return made


def model(vocabulary: int) -> LlamaForCausalLM:
    """Two layers, random weights, always the same ones."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        dtype="bfloat16",
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


if __name__ == "__main__":
    folder = sys.argv[1]
    made = tokenizer()
    made.save_pretrained(folder)
    model(len(made)).save_pretrained(folder)
